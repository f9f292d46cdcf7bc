"""Which libnccl a rank will load or has loaded: path, version, build and known patches, read from the file itself.

LD_LIBRARY_PATH does not replace the copy that torch finds through its RPATH, so the file is looked for where torch
looks; what a running rank really mapped is read from /proc/PID/maps.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from .facts import NcclLibrary
from .roots import Roots, Unreadable

_VERSION = re.compile(rb"NCCL version (\d+\.\d+\.\d+)\+cuda")
_MARKERS = {"subnet-aware": b"IB_SUBNET_AWARE_ROUTING", "switchless-ring": b"SWITCHLESS_RING_ONLY"}
"""A library that obeys a variable holds its name: the first is in NCCL since 2.30.7, the second in no stock one."""
_MAX_BYTES = 2 << 30


def planned_library(python: str, chosen: str | None, preload: str = "") -> Path:
    """The libnccl that torch of this engine loads. Raises Unreadable when there is none to find.

    `chosen` is the settings' own; `preload` is LD_PRELOAD, which comes before everything.
    """
    if chosen is not None:
        return Path(chosen)
    for entry in preload.replace(":", " ").split():
        if "libnccl" in entry:
            return Path(entry)
    found = sorted(Path(python).parent.parent.glob("lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"))
    if not found:
        raise Unreadable(f"there is no nvidia/nccl/lib/libnccl.so.2 beside {python}")
    return found[-1]


def mapped_libraries(roots: Roots, pids: Iterable[int]) -> tuple[Path, ...]:
    """Every libnccl that these processes have mapped."""
    paths: set[str] = set()
    for pid in pids:
        try:
            lines = (roots.proc / str(pid) / "maps").read_text(errors="replace").splitlines()
        except OSError:
            continue
        paths |= {line.split(None, 5)[5] for line in lines if re.search(r"/libnccl\.so[^/]*$", line)}
    return tuple(Path(path) for path in sorted(paths)[:8])


def read_library(path: Path) -> NcclLibrary:
    """One library. Reads the whole file the first time: call it in a thread. Raises Unreadable."""
    try:
        real = path.resolve(strict=True)
        stat = real.stat()
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from None
    if not 0 < stat.st_size <= _MAX_BYTES:
        raise Unreadable(f"{path} has {stat.st_size} bytes, which no libnccl has")
    return _read(str(real), stat.st_mtime_ns, stat.st_size)


def read_mapped(roots: Roots, pid: int, path: Path) -> NcclLibrary:
    """One library as a process in a container has it. Raises Unreadable.

    Through the process's own root, which the kernel follows; resolving the name would lead to this machine's file.
    """
    outside = f"{roots.proc}/{pid}/root{path}"
    try:
        stat = os.stat(outside)
    except OSError as error:
        raise Unreadable(f"{path} of process {pid}: {error.strerror}") from None
    if not 0 < stat.st_size <= _MAX_BYTES:
        raise Unreadable(f"{path} of process {pid} has {stat.st_size} bytes, which no libnccl has")
    return _read(outside, stat.st_mtime_ns, stat.st_size).model_copy(update={"path": str(path)})


@lru_cache(maxsize=16)
def _read(path: str, mtime_ns: int, size: int) -> NcclLibrary:
    """Cached by content as far as a file system tells: same path, time and size."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            version = _VERSION.search(data)
            return NcclLibrary(
                path=path,
                sha256=hashlib.sha256(data).hexdigest(),
                build_id=_build_id(data[: 1 << 16]),
                version=version[1].decode() if version else None,
                patches=tuple(name for name, marker in _MARKERS.items() if data.find(marker) >= 0),
            )
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from None


def _build_id(head: bytes) -> str | None:
    """The GNU build id: a note with name size 4, 20 bytes of content, type 3, name GNU."""
    at = head.find(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0")
    return head[at + 16 : at + 36].hex() if at >= 0 and len(head) >= at + 36 else None
