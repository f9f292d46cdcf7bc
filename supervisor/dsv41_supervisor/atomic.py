"""Small files that are either the old or the new, never half: state, plans, reports."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

from .journal import Event, event, log

MAX_BYTES = 4 << 20
"""None of ours is near it; what is larger is somebody else's, or damage."""


def write_json(path: Path, value: Any, mode: int = 0o640) -> None:
    """Write beside the target, flush to disk, rename. The directory is made when it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # NOFOLLOW: a rank in a container is root here, and its report directory is also the engine's user's.
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "w") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None when there is none. An unreadable one is set aside and named in the log."""
    try:
        raw = json.loads(_bytes(path))
        if not isinstance(raw, dict):
            raise ValueError("not a JSON object")
        return raw
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        set_aside(path, f"is unreadable ({error})")
        return None


def read_state(path: Path, **ours: object) -> dict[str, Any] | None:
    """As `read_json`, for a file that says what it is: one that names another format, fleet or node is not ours and
    is set aside too, never trusted.
    """
    raw = read_json(path)
    if raw is None:
        return None
    for name, expected in ours.items():
        if name in raw and raw[name] != expected:
            set_aside(path, f"has {name} {raw[name]!r}, expected {expected!r}")
            return None
    return raw


def set_aside(path: Path, why: str) -> None:
    """Rename a file that cannot be used, so that it is neither trusted nor lost, and say so."""
    aside = path.with_name(path.name + ".unreadable")
    event(Event.STATE_SET_ASIDE, f"{path} {why}; set aside as {aside}", logging.WARNING)
    try:
        path.replace(aside)
    except OSError as error:
        log.warning("could not set %s aside: %s", path, error.strerror)


def _bytes(path: Path) -> bytes:
    # Not blocking: a pipe in the place of a file would be waited for without an end.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a file")
        if found.st_size > MAX_BYTES:
            raise ValueError(f"{found.st_size} bytes, expected {MAX_BYTES} at most")
        with open(fd, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    finally:
        os.close(fd)
