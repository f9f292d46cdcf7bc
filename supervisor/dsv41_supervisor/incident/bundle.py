"""One bundle: a .tar.gz of text parts, bounded in size; the oldest make room. A full disk is named, not hidden."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..journal import log

NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[a-z0-9-]{1,60}")
_CUT = "\n… {n} bytes cut to keep the bundle small …\n"
MIN_PART_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Entry:
    """One bundle in the list."""

    name: str
    bytes: int
    at: float


def bundle_name(kind: str, at: float, boot: str | None) -> str:
    """`20261130T021200Z-lost-20261130t0210`: sorts by time, and is safe as a file name and in a URL."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{kind}-{boot or 'no-boot'}".lower()).strip("-")[:60].strip("-")
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at))}-{words or 'incident'}"


def fit(parts: Mapping[str, str], max_bytes: int) -> dict[str, bytes]:
    """Cut the largest parts until all fit. A cut part keeps its beginning, and more of its end."""
    left, fitted = max_bytes, {}
    by_size = sorted(((name, text.encode(errors="replace")) for name, text in parts.items()), key=lambda p: len(p[1]))
    for i, (name, raw) in enumerate(by_size):
        share = max(MIN_PART_BYTES, left // (len(by_size) - i))
        if len(raw) > share:
            marker = _CUT.format(n=len(raw) - share).encode()
            head = max(0, (share - len(marker)) // 5)
            raw = raw[:head] + marker + raw[len(raw) - max(0, share - len(marker) - head) :]
        fitted[name] = raw
        left = max(0, left - len(raw))
    return {name: fitted[name] for name in parts}


def write(directory: Path, name: str, parts: Mapping[str, str], max_bytes: int, max_bundles: int) -> Path:
    """Write a bundle whole or not at all; make room by count, and by removing old ones when the disk is full.

    Raises OSError when it still cannot be written.
    """
    raw = _packed(name, fit(parts, max_bytes))
    directory.mkdir(parents=True, exist_ok=True, mode=0o750)
    prune(directory, max_bundles - 1)
    while True:
        try:
            return _put(directory / f"{name}.tar.gz", raw)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not prune(directory, len(entries(directory)) - 1):
                raise
            log.warning("%s is full; the oldest bundle made room", directory)


def entries(directory: Path) -> list[Entry]:
    """All bundles, oldest first."""
    found = []
    for path in directory.glob("*.tar.gz"):
        name = path.name.removesuffix(".tar.gz")
        if NAME.fullmatch(name):
            stat = path.stat()
            found.append(Entry(name, stat.st_size, stat.st_mtime))
    return sorted(found, key=lambda e: e.name)


def prune(directory: Path, keep: int) -> int:
    """Remove the oldest beyond `keep`; returns how many went."""
    gone = 0
    for entry in entries(directory)[: max(0, len(entries(directory)) - max(0, keep))]:
        (directory / f"{entry.name}.tar.gz").unlink(missing_ok=True)
        gone += 1
    for half in directory.glob(".*.tmp"):
        half.unlink(missing_ok=True)
    return gone


def listing(directory: Path, name: str) -> dict[str, int]:
    """Parts of one bundle with their sizes. Raises FileNotFoundError, or ValueError for a name that none has."""
    with tarfile.open(_path(directory, name)) as tar:
        return {member.name.partition("/")[2]: member.size for member in tar.getmembers()}


def read(directory: Path, name: str, part: str) -> str:
    """One part of a bundle. Raises FileNotFoundError, ValueError or KeyError."""
    with tarfile.open(_path(directory, name)) as tar:
        file = tar.extractfile(f"{name}/{part}")
        if file is None:
            raise KeyError(part)
        return file.read().decode(errors="replace")


def as_text(value: Any) -> str:
    """JSON for people."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str) + "\n"


def _path(directory: Path, name: str) -> Path:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no bundle's name")
    return directory / f"{name}.tar.gz"


def _packed(name: str, parts: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as tar:
        for part, raw in parts.items():
            info = tarfile.TarInfo(f"{name}/{part}")
            info.size, info.mtime, info.mode = len(raw), int(time.time()), 0o640
            tar.addfile(info, io.BytesIO(raw))
    return out.getvalue()


def _put(path: Path, raw: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640), "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
