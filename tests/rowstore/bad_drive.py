"""What the fault tests share: a drive that fails when told to, and one way to open, ask and compare."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import time
from array import array
from pathlib import Path

import pytest
from dsv41_rowstore import Partition, RowStore

HERE = Path(__file__).parent
ENGINE_CALLS = {  # its first system call: (number on x86-64, on every newer architecture)
    "uring": (425, 425),  # io_uring_setup
    "aio": (206, 0),  # io_setup
}


def refused(engine: str) -> str | None:
    """Why this kernel (a container's seccomp, qemu-user) has not got an engine; None when it has."""
    if engine not in ENGINE_CALLS:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    number = ENGINE_CALLS[engine][os.uname().machine != "x86_64"]
    libc.syscall(number, 0, None)  # asks for nothing: EINVAL or EFAULT where the call is known
    error = ctypes.get_errno()
    return os.strerror(error) if error in (errno.ENOSYS, errno.EPERM) else None


def having(engine: str, *others: object, **kwargs):
    """A parameter of a test of that engine, skipped with the reason where the kernel refuses it."""
    why = refused(engine)
    return pytest.param(engine, *others, marks=pytest.mark.skipif(why is not None, reason=f"{engine}: {why}"), **kwargs)


ENGINES = [having(engine) for engine in ("uring", "aio", "threads")]
USABLE = [engine for engine in ("uring", "aio", "threads") if refused(engine) is None]
needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse"),
    reason="needs root and /dev/fuse to mount a bad drive",
)


class Faulty:
    def __init__(self, source: Path, mount: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "faulty_fs.py"), str(source), str(mount)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        if self.process.stdout.readline().strip() != "ready":
            self.process.wait(10)
            pytest.skip("FUSE cannot be mounted here")

    def __call__(self, command: str) -> str:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


def open_store(paths, **kwargs):
    return RowStore.open(
        paths,
        rank=0,
        world_size=1,
        partition=Partition.BALANCED,
        verify_segments=0,
        **{"cache_bytes": 0, **kwargs},
    )


def outputs(n):
    return bytearray(b"\xaa" * 256 * n), bytearray(b"\xaa" * 8 * n)


def fetch(store, layer, ids):
    weight, scale = outputs(len(ids))
    store.gather(layer, array("q", ids), weight, scale)
    return bytes(weight), bytes(scale)


def expected(checkpoint, layer, ids):
    return checkpoint.expected(layer, ids, 0, 1, Partition.BALANCED)


def wait_until(condition, what, deadline_s=60.0):
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {deadline_s} s"
        time.sleep(0.002)
