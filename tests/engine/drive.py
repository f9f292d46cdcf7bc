"""A drive that a test makes slow or broken while an engine reads from it: `inside/faulty_pread.c`."""

from __future__ import annotations

import contextlib
import mmap
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent / "inside" / "faulty_pread.c"


class Drive:
    """For a row store whose engine is `threads`: nothing can stand before the system calls of the others."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._library = directory / "faulty_pread.so"
        control = directory / "drive"
        subprocess.run(["gcc", "-O2", "-Wall", "-shared", "-fPIC", "-o", self._library, SOURCE, "-ldl"], check=True)
        control.write_bytes(bytes(4096))
        with open(control, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), 4096)
        self.environment = {"LD_PRELOAD": str(self._library), "DSV41_TEST_PREAD": str(control)}

    @property
    def n_reads(self) -> int:
        return int(struct.unpack_from("<q", self._page, 16)[0])

    @property
    def n_failed(self) -> int:
        return int(struct.unpack_from("<q", self._page, 24)[0])

    @contextlib.contextmanager
    def slow(self, latency_us: int) -> Iterator[None]:
        """Every read takes this long on top."""
        struct.pack_into("<q", self._page, 0, latency_us)
        try:
            yield
        finally:
            struct.pack_into("<q", self._page, 0, 0)

    @contextlib.contextmanager
    def broken(self, error: int, part_of_path: str = "") -> Iterator[None]:
        """Reads of these files fail with this errno."""
        self._page[64:320] = part_of_path.encode().ljust(256, b"\0")
        struct.pack_into("<q", self._page, 8, error)
        try:
            yield
        finally:
            struct.pack_into("<q", self._page, 8, 0)
