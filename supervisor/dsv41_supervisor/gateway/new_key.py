"""Making a key: the key itself is given back once and kept nowhere, the file gets its hash."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import secrets
from collections.abc import Sequence
from pathlib import Path

from ..errors import Dsv41Error, Stage
from .keys import Entry, digest, is_name, parse, read
from .limits import parse_options

PREFIX = "dsv41-"
"""So that people and secret scanners see what it is."""
GATEWAY_USER = "dsv41-gateway"


def add(path: Path, name: str, options: Sequence[str] = ()) -> str:
    """Append a new key with this name to the file, which is made when it is missing. Gives the key.

    Raises Dsv41Error before anything is written when the file would be refused afterwards; OSError.
    """
    if not is_name(name):
        raise _refused(
            f"{name!r} is no name for a key.", "A name has letters, digits, dots and dashes, 64 at most."
        )
    try:
        parse_options(options)
    except ValueError as error:
        raise _refused(f"the new key would have {error}.", "For example: requests=4 effort=low.") from None
    key = PREFIX + secrets.token_urlsafe(32)
    line = " ".join([f"{name}:sha256:{digest(key).hex()}", *options])
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # two commands at once would not see each other's name
        before = file.read()
        if not before:
            _give_to_gateway(file.fileno())
        elif not before.endswith(b"\n"):
            line = f"\n{line}"
        parse(before.decode(errors="replace") + line + "\n", str(path))
        file.write(f"{line}\n".encode())
    return key


def known(path: Path) -> dict[str, Entry]:
    """The keys of the file by name. Raises Dsv41Error."""
    return read(path)[0]


def _give_to_gateway(file: int) -> None:
    """A file made by root must be readable by the gateway, which reads it again when it changes."""
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError):  # no such user where there are no units, as in the demo
            user = pwd.getpwnam(GATEWAY_USER)
            os.fchown(file, user.pw_uid, user.pw_gid)


def _refused(what: str, hint: str) -> Dsv41Error:
    return Dsv41Error(what, stage=Stage.GATEWAY, hint=hint)
