"""API keys: a file of `name:key` lines, reloaded on change, held as hashes, compared in constant time.

Behind a key may stand what it is limited to: `me:sha256:<digits> requests=4 tokens_per_minute=200000`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import Dsv41Error, Stage
from ..journal import log
from .limits import NO_LIMITS, KeyLimits, parse_options

MAX_FILE_BYTES = 1 << 20
MIN_KEY_CHARS = 16
"""Shorter keys can be guessed over a network. Guess at the bound; a generated key has 43."""

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_HEX = re.compile(r"^[0-9a-fA-F]{64}$")
_MAKE_ONE = "dsv41 key new NAME"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request comes from, and what its key is limited to."""

    name: str
    limits: KeyLimits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the key file."""

    hashed: bytes
    limits: KeyLimits


ANYONE = Caller("anyone")
"""The caller when keys are turned off (loopback only)."""


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def is_name(name: str) -> bool:
    return _NAME.match(name) is not None


def parse(text: str, source: str) -> dict[str, Entry]:
    """The keys by name. Raises Dsv41Error with the line number, never with the key."""
    keys: dict[str, Entry] = {}
    hashes: set[bytes] = set()
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, rest = (part.strip() for part in line.partition(":"))
        if not colon or not is_name(name):
            raise _refused(
                f"{source} line {number} is not `name:key`.",
                "A name has letters, digits, dots, dashes; write name:key or name:sha256:<64 hex digits>.",
            )
        if name in keys:
            raise _refused(
                f"{source} line {number} names {name} a second time.", "Give each key its own name."
            )
        entry = _entry(rest, f"{source} line {number} ({name})")
        if entry.hashed in hashes:
            raise _refused(
                f"{source} line {number} ({name}) repeats another name's key.", f"Make one: {_MAKE_ONE}."
            )
        hashes.add(entry.hashed)
        keys[name] = entry
    if not keys:
        raise _refused(f"{source} holds no key.", f"Add one: {_MAKE_ONE}.")
    return keys


def _entry(rest: str, where: str) -> Entry:
    key, *options = rest.removeprefix("sha256:").split() or [""]
    if rest.startswith("sha256:"):
        if not _HEX.match(key):
            raise _refused(
                f"{where} has sha256: without 64 hex digits.", "printf %s KEY | sha256sum gives them."
            )
        hashed = bytes.fromhex(key)
    elif len(key) < MIN_KEY_CHARS:
        raise _refused(
            f"{where} has a key shorter than {MIN_KEY_CHARS} characters.", f"Make one: {_MAKE_ONE}."
        )
    else:
        hashed = digest(key)
    try:
        return Entry(hashed, parse_options(options))
    except ValueError as error:
        raise _refused(f"{where} has {error}.", "A key has no spaces; limits follow it, as name=value.") from None


def read(path: Path) -> tuple[dict[str, Entry], tuple[int, ...]]:
    """The keys by name, and the file's stamp. Raises Dsv41Error; warns when a group may read it."""
    try:
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _refused(f"{path} is not a file.", "Name the keys file in gateway.keys_file.")
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        hint = f"Make it: {_MAKE_ONE} (as root), or name another in gateway.keys_file."
        raise _refused(f"the API key file {path} does not exist.", hint) from None
    except OSError as error:
        hint = "The gateway's user must be able to read it; under systemd it is a LoadCredential= file."
        raise _refused(f"cannot read the API key file {path}: {error.strerror}.", hint) from None
    if status.st_mode & stat.S_IROTH:
        raise _refused(
            f"the API key file {path} can be read by every user (mode {stat.S_IMODE(status.st_mode):04o}).",
            f"Run chmod 600 {path}, and change the keys if others use this machine.",
        )
    if status.st_mode & (stat.S_IRGRP | stat.S_IWGRP | stat.S_IWOTH):
        log.warning(
            "the API key file %s has mode %04o; run chmod 600 %s", path, stat.S_IMODE(status.st_mode), path
        )
    if len(content) > MAX_FILE_BYTES:
        raise _refused(
            f"the API key file {path} is larger than {MAX_FILE_BYTES} bytes.", "Is it the right file?"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise _refused(f"the API key file {path} is not text.", "Is it the right file?") from None
    return parse(text, str(path)), _stamp(status)


class KeyFile:
    """The keys in force. `who` looks at the file's stamp: a removed key is gone with the next request.

    A file that turned bad while running (gone, empty, half-written, world-readable) leaves the last good keys
    in force and is named in the log once: a slip of the editor must not shut everybody out.
    """

    def __init__(self, path: Path) -> None:
        """Raises Dsv41Error when the file cannot be used."""
        self.path = path
        self._keys, self._stamp = read(path)
        self._hashes = {name: entry.hashed for name, entry in self._keys.items()}
        self._bad: object = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def who(self, presented: str) -> Caller | None:
        """The caller with this key, or None."""
        self._reload()
        name = match(self._hashes, digest(presented))
        return Caller(name, self._keys[name].limits) if name is not None else None

    def _reload(self) -> None:
        try:
            stamp: object = _stamp(os.stat(self.path))
        except OSError as error:
            stamp = error.errno
        if stamp in (self._stamp, self._bad):
            return
        try:
            self._keys, self._stamp = read(self.path)
        except Dsv41Error as error:
            self._bad = stamp
            log.warning("%s The last good keys (%d) stay in force.", error, len(self._keys))
        else:
            self._hashes = {name: entry.hashed for name, entry in self._keys.items()}
            self._bad = None
            log.info("read %s again: %d keys (%s)", self.path, len(self._keys), ", ".join(self._keys))


def match(keys: Mapping[str, bytes], presented: bytes) -> str | None:
    """Compares with every key, in constant time each and without an early exit: the time tells nothing."""
    found: str | None = None
    for name, known in keys.items():
        if hmac.compare_digest(known, presented):
            found = name
    return found


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key in `Authorization: Bearer …`, or where Anthropic's clients put it; None when there is none."""
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not key:
        key = headers.get("x-api-key", "").strip()
    return key or None


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _refused(what: str, hint: str) -> Dsv41Error:
    return Dsv41Error(what, stage=Stage.GATEWAY, hint=hint)
