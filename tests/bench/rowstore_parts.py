"""Parts of the row store benchmark: the table, the readers compared ("arms"), and how one is measured."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dsv41_rowstore import Partition, RowStore, layout, rows_path
from dsv41_rowstore.rowbytes import crc32c

HERE = Path(__file__).parent
ROW = 264
BLOCK = 65536


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compile_c(directory: Path, name: str) -> ctypes.CDLL:
    library = directory / f"{name}.so"
    source = HERE / f"{name}.c"
    subprocess.run(["cc", "-O3", "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


class Table:
    """A packed file of one layer at world size one whose row i is computed from i; made once per directory."""

    def __init__(self, directory: Path, n_rows: int) -> None:
        self.n_rows = n_rows // 24 * 24
        self.oracle = compile_c(directory, "rowstore_oracle")
        self.oracle.oracle_check.restype = self.oracle.oracle_round_robin.restype = ctypes.c_int64
        self.path = rows_path(directory, 1, 0, 1)
        try:
            if layout.read_header(self.path).n_rows == self.n_rows:
                return
        except Exception as why:
            say(f"making a table of {self.n_rows * ROW / 2**30:.1f} GiB ({why})")
        self._make()

    def _make(self) -> None:
        crcs, buffer = [], bytearray(BLOCK * ROW)
        where = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        with open(self.path, "wb") as file:
            file.truncate(layout.file_bytes(self.n_rows))
            file.seek(layout.PAGE_BYTES)
            for first in range(0, self.n_rows, BLOCK):
                n = min(BLOCK, self.n_rows - first)
                self.oracle.oracle_fill(where, ctypes.c_int64(first), ctypes.c_int64(n))
                view = memoryview(buffer)[: n * ROW]
                crcs.append(crc32c(view))
                file.write(view)
            table = struct.pack(f"<{len(crcs)}I", *crcs)
            file.seek(layout.segment_table_offset(self.n_rows))
            file.write(table)
            file.seek(0)
            file.write(
                layout.encode_header(
                    finished=True,
                    done_segments=len(crcs),
                    table=table,
                    layer=1,
                    rank=0,
                    world_size=1,
                    partition=Partition.BALANCED,
                    head_sizes=[self.n_rows // 24] * 24,
                    n_rows=self.n_rows,
                    source_digest=bytes(32),
                    revision="bench",
                )  # fmt: skip
            )
            os.fsync(file.fileno())

    def uniform(self, n: int, seed: int, among: int | None = None) -> Ids:
        ids = Ids(n)
        rows = self.n_rows if among is None else among
        self.oracle.oracle_uniform(ids.ids, ctypes.c_int64(n), ctypes.c_int64(rows), ctypes.c_uint64(seed))
        return ids

    def check(self, ids: Ids, out: Out) -> None:
        wrong = self.oracle.oracle_check(ids.ids, ctypes.c_int64(ids.n), out.weight, out.scale)
        if wrong >= 0:
            raise SystemExit(f"position {wrong} of {ids.n} is wrong: nothing here can be believed")

    def drop_cached(self) -> None:
        fd = os.open(self.path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class Ids:
    def __init__(self, n: int) -> None:
        self.n, self.ids = n, (ctypes.c_int64 * n)()


class Out:
    def __init__(self, n: int) -> None:
        self.weight, self.scale = (ctypes.c_ubyte * (256 * n))(), (ctypes.c_ubyte * (8 * n))()
        ctypes.memset(self.weight, 0xAA, 256 * n)
        ctypes.memset(self.scale, 0xAA, 8 * n)


# ---- arms --------------------------------------------------------------------------------------------------


class Ours:
    def __init__(self, table: Table, cache_bytes: int = 0, **kwargs) -> None:
        self.store = RowStore.open(
            {1: table.path}, rank=0, world_size=1, partition=Partition.BALANCED, cache_bytes=cache_bytes,
            verify_segments=0, **kwargs,
        )  # fmt: skip

    def gather(self, ids: Ids, out: Out) -> None:
        self.store.gather(1, ids.ids, out.weight, out.scale)

    def close(self) -> None:
        self.store.close()


class Threads:
    """The published design (rowstore_baseline.c)."""

    library: ctypes.CDLL

    def __init__(self, table: Table, n_threads: int, cache_bytes: int = 0) -> None:
        self.library.baseline_open.restype = ctypes.c_void_p
        path = os.fsencode(table.path)
        self.pool = ctypes.c_void_p(
            self.library.baseline_open(path, ctypes.c_int(n_threads), ctypes.c_uint64(cache_bytes))
        )

    def fill(self, table: Table, n: int) -> None:
        path = os.fsencode(table.path)
        self.library.baseline_fill(self.pool, path, ctypes.c_uint64(0), ctypes.c_uint64(n))

    def gather(self, ids: Ids, out: Out) -> None:
        self.library.baseline_gather(self.pool, ids.ids, ctypes.c_long(ids.n), out.weight, out.scale)

    def close(self) -> None:
        self.library.baseline_close(self.pool)


class RowByRow:
    """A peer that gives one row at a time: `read(row) -> 264 bytes`."""

    def __init__(self, read: Callable[[int], bytes], close: Callable[[], None] = lambda: None) -> None:
        self.read, self.close = read, close

    def gather(self, ids: Ids, out: Out) -> None:
        weight, scale = memoryview(out.weight).cast("B"), memoryview(out.scale).cast("B")
        for i, row in enumerate(ids.ids):
            raw = self.read(row)
            weight[256 * i : 256 * i + 256] = raw[:256]
            scale[8 * i : 8 * i + 8] = raw[256:264]


def preadv_peer(table: Table) -> RowByRow:
    fd = os.open(table.path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    buffer = bytearray(ROW)
    view = [memoryview(buffer)]

    def read(row: int) -> bytes:
        os.preadv(fd, view, 4096 + row * ROW)
        return buffer

    return RowByRow(read, lambda: os.close(fd))


def mmap_peer(table: Table) -> RowByRow:
    with open(table.path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    return RowByRow(lambda row: mapped[4096 + row * ROW : 4096 + row * ROW + ROW], mapped.close)


def memmap_peer(table: Table) -> RowByRow | None:
    try:
        import numpy
    except ImportError:
        return None
    rows = numpy.memmap(table.path, numpy.uint8, "r", 4096, (table.n_rows, ROW))
    return RowByRow(lambda row: rows[row].tobytes())


PEERS = {"preadv": preadv_peer, "mmap": mmap_peer, "numpy_memmap": memmap_peer}


# ---- measuring ---------------------------------------------------------------------------------------------


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Samples:
    """Times of single calls of one arm, by round."""

    def __init__(self) -> None:
        self.rounds: list[list[float]] = []
        self.cpu_s = 0.0
        self.n_rows = 0

    def all(self) -> list[float]:
        return sorted(t for times in self.rounds for t in times)

    def quantile_us(self, q: float) -> float:
        times = self.all()
        return times[min(len(times) - 1, int(q * len(times)))] * 1e6

    def report(self, batch: int) -> dict[str, object]:
        medians = [statistics.median(times) for times in self.rounds]
        return {
            "p50_us": round(self.quantile_us(0.5), 1),
            "p99_us": round(self.quantile_us(0.99), 1),
            "rows_per_s": round(batch / statistics.median(self.all())),
            "cpu_us_per_row": round(self.cpu_s / self.n_rows * 1e6, 2),
            "round_p50_us": [round(m * 1e6, 1) for m in medians],
        }


def interleave(
    table: Table, arms: dict[str, object], batch: int, calls: int, rounds: int, ids_of, before_call=None
) -> dict[str, Samples]:
    """Every arm in turn, call by call, so that all meet the same minute of a shared drive.

    Every 8th call is compared with what its rows must be. `before_call` runs outside the measured time.
    """
    found = {name: Samples() for name in arms}
    out, names, turn = Out(batch), list(arms), 0
    for _ in range(rounds):
        for samples in found.values():
            samples.rounds.append([])
        for _ in range(calls):
            turn += 1
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                ids = ids_of(batch)
                samples, arm = found[name], arms[name]
                if before_call:
                    before_call()
                cpu, begun = cpu_s(), time.perf_counter()
                arm.gather(ids, out)
                samples.rounds[-1].append(time.perf_counter() - begun)
                samples.cpu_s += cpu_s() - cpu
                samples.n_rows += batch
                if turn % 8 == 0 or batch > 1000:
                    table.check(ids, out)
    return found


def ratio(slow: Samples, fast: Samples) -> float:
    """Median over rounds of the ratio of the rounds' medians."""
    return statistics.median(
        statistics.median(a) / statistics.median(b) for a, b in zip(slow.rounds, fast.rounds, strict=True)
    )
