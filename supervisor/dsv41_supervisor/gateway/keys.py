"""API keys: a file of `name:key` lines, reloaded on change, held as hashes, compared in constant time."""

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

MAX_FILE_BYTES = 1 << 20
MIN_KEY_CHARS = 16
"""Shorter keys can be guessed over a network. Guess at the bound; a generated key has 43."""

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_HEX = re.compile(r"^[0-9a-fA-F]{64}$")
_MAKE_ONE = "openssl rand -hex 32"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request comes from. Limits of a key belong here."""

    name: str


ANYONE = Caller("anyone")
"""The caller when keys are turned off (loopback only)."""


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def parse(text: str, source: str) -> dict[str, bytes]:
    """Names and key hashes. Raises Dsv41Error with the line number, never with the key."""
    keys: dict[str, bytes] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, key = (part.strip() for part in line.partition(":"))
        if not colon or not _NAME.match(name):
            raise _refused(
                f"{source} line {number} is not `name:key`.",
                "A name has letters, digits, dots, dashes; write name:key or name:sha256:<64 hex digits>.",
            )
        if name in keys:
            raise _refused(
                f"{source} line {number} names {name} a second time.", "Give each key its own name."
            )
        hashed = _hash_of(key, f"{source} line {number} ({name})")
        if hashed in keys.values():
            raise _refused(
                f"{source} line {number} ({name}) repeats another name's key.", f"Make one: {_MAKE_ONE}."
            )
        keys[name] = hashed
    if not keys:
        raise _refused(f"{source} holds no key.", f'Add one: echo "me:$({_MAKE_ONE})" >> {source}.')
    return keys


def _hash_of(key: str, where: str) -> bytes:
    if key.startswith("sha256:"):
        digits = key.removeprefix("sha256:").strip()
        if not _HEX.match(digits):
            raise _refused(
                f"{where} has sha256: without 64 hex digits.", "printf %s KEY | sha256sum gives them."
            )
        return bytes.fromhex(digits)
    if len(key) < MIN_KEY_CHARS or any(c.isspace() for c in key):
        raise _refused(
            f"{where} has a key shorter than {MIN_KEY_CHARS} characters or with spaces.",
            f"Make one: {_MAKE_ONE}.",
        )
    return digest(key)


def read(path: Path) -> tuple[dict[str, bytes], tuple[int, ...]]:
    """Names and key hashes, and the file's stamp. Raises Dsv41Error; warns when a group may read it."""
    try:
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _refused(f"{path} is not a file.", "Name the keys file in gateway.keys_file.")
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        hint = (
            f'Make it: (umask 077; echo "me:$({_MAKE_ONE})" > {path}), or name another in gateway.keys_file.'
        )
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
        self._bad: object = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def who(self, presented: str) -> Caller | None:
        """The caller with this key, or None."""
        self._reload()
        return match(self._keys, digest(presented))

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
            self._bad = None
            log.info("read %s again: %d keys (%s)", self.path, len(self._keys), ", ".join(self._keys))


def match(keys: Mapping[str, bytes], presented: bytes) -> Caller | None:
    """Compares with every key, in constant time each and without an early exit: the time tells nothing."""
    found: str | None = None
    for name, known in keys.items():
        if hmac.compare_digest(known, presented):
            found = name
    return Caller(found) if found is not None else None


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key in `Authorization: Bearer …`; None when there is none."""
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    key = key.strip()
    return key if scheme.lower() == "bearer" and key else None


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _refused(what: str, hint: str) -> Dsv41Error:
    return Dsv41Error(what, stage=Stage.GATEWAY, hint=hint)
