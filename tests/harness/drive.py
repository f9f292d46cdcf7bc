"""A small file system that can be filled up."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SMALL_BYTES = 4 << 20


@contextmanager
def small_drive(path: Path) -> Iterator[None]:
    """A tmpfs at `path`; skips the test where none can be mounted."""
    path.mkdir(parents=True)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={SMALL_BYTES},mode=0755".encode()
    if libc.mount(b"tmpfs", str(path).encode(), b"tmpfs", 0, options):
        pytest.skip(f"a tmpfs cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        assert libc.umount2(str(path).encode(), 0) == 0, os.strerror(ctypes.get_errno())


def fill(path: Path, name: str = "filler") -> Path:
    """Take every byte that is left."""
    filler = path / name
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler
