"""Parts of the row store benchmark: the table, the readers compared ("arms"), and how one is measured."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

from dsv41_rowstore import Partition, RowStore, layout, rows_path
from dsv41_rowstore.rowbytes import crc32c

HERE = Path(__file__).parent
ROW = 264
BLOCK = 65536
RELEASED = {
    "engram_layer_ids": [1, 14], "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 256,
    "engram_vocab_size": 16_000_000, "engram_num_embeddings": [384_006_168, 384_016_682],
    "engram_compressed_vocab_size": 99_092, "engram_pad_token_id": 2,
}  # fmt: skip


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


class Arm(Protocol):
    def gather(self, ids: Ids, out: Out) -> None: ...

    def close(self) -> None: ...


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


# ---- measuring ---------------------------------------------------------------------------------------------


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def fio(path: Path, *options: str, seconds: float = 1.5) -> tuple[float, float] | None:
    """Random direct reads of a file by fio: (reads a second, CPU us a read). None where it is not installed."""
    program = shutil.which("fio")
    if program is None:
        return None
    done = subprocess.run(
        [program, "--name=r", f"--filename={path}", "--readonly", "--rw=randread", "--direct=1", "--norandommap=1",
         f"--runtime={seconds}", "--time_based=1", "--output-format=json", "--group_reporting=1", "--ioengine=io_uring",
         "--fixedbufs=1", "--registerfiles=1", *options],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    busy = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["read"]["runtime"] / 1e3
    return job["read"]["iops"], busy / job["read"]["total_ios"] * 1e6


def fio_batches(n: int) -> list[str]:
    """fio's options for n reads at once, all back before the next n begin."""
    return [f"--iodepth={n}", f"--iodepth_batch_submit={n}", f"--iodepth_batch_complete_min={n}",
            f"--iodepth_batch_complete_max={n}"]  # fmt: skip


class Samples:
    """Times of single calls of one arm, by round."""

    def __init__(self) -> None:
        self.rounds: list[list[float]] = []
        self.cpu_s = 0.0
        self.n_rows = 0

    def time(self, arm: Arm, ids: Ids, out: Out) -> None:
        cpu, begun = cpu_s(), time.perf_counter()
        arm.gather(ids, out)
        self.rounds[-1].append(time.perf_counter() - begun)
        self.cpu_s += cpu_s() - cpu
        self.n_rows += ids.n

    def all(self) -> list[float]:
        return sorted(t for times in self.rounds for t in times)

    def cpu_us_per_row(self) -> float:
        return self.cpu_s / self.n_rows * 1e6

    def quantile_us(self, q: float) -> float:
        times = self.all()
        return times[min(len(times) - 1, int(q * len(times)))] * 1e6

    def report(self, batch: int) -> dict[str, object]:
        medians = [statistics.median(times) for times in self.rounds]
        return {
            "p50_us": round(self.quantile_us(0.5), 1),
            "p99_us": round(self.quantile_us(0.99), 1),
            "rows_per_s": round(batch / statistics.median(self.all())),
            "cpu_us_per_row": round(self.cpu_us_per_row(), 2),
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
                samples.time(arm, ids, out)
                if turn % 8 == 0 or batch > 1000:
                    table.check(ids, out)
    return found


def ratio(slow: Samples, fast: Samples) -> float:
    """Median over rounds of the ratio of the rounds' medians."""
    return statistics.median(
        statistics.median(a) / statistics.median(b) for a, b in zip(slow.rounds, fast.rounds, strict=True)
    )


# ---- goals -------------------------------------------------------------------------------------------------

class Bench:
    """What is measured and which goals hold, over all parts of one run."""

    def __init__(self, table: Table, args: argparse.Namespace) -> None:
        self.table, self.args, self.seed = table, args, 1
        self.goals: list[dict[str, object]] = []
        self.measured: dict[str, object] = {}

    def goal(
        self, name: str, goal: str, figure: float | None, unit: str, holds: bool | None, note: str = ""
    ) -> None:
        entry = {"name": name, "goal": goal, "figure": figure, "unit": unit, "holds": holds}
        self.goals.append(entry | ({"note": note} if note else {}))
        say(
            f"  {'holds' if holds else 'FAILS' if holds is False else 'not measured'}: {name}: {figure} {unit} ({goal})"
        )

    def at_least(self, name: str, goal: float, figure: float, unit: str = "x", note: str = "") -> None:
        self.goal(name, f">= {goal}", round(figure, 3), unit, figure >= goal, note)

    def at_most(self, name: str, goal: float, figure: float, unit: str = "x", note: str = "") -> None:
        self.goal(name, f"<= {goal}", round(figure, 3), unit, figure <= goal, note)

    def uniform(self, n: int):
        self.seed += 1
        return self.table.uniform(n, self.seed * 7919)
