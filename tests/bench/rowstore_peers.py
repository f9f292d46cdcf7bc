"""Other ways to read a row."""

from __future__ import annotations

import mmap
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import rowstore_parts as parts
from rowstore_parts import ROW, Bench, Ids, Ours, Out, Table, fio, interleave, ratio


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


def one_over_many(bench: Bench) -> str:
    """Who reads one row after another is at most this much slower than anybody: the drive's rate at 96 over at one."""
    rounds = []
    for _ in range(5):
        drive = [fio(bench.table.path, "--bs=4k", *parts.fio_batches(n)) for n in (96, 1)]
        if None in drive:
            return "fio is not installed"
        rounds.append(drive[0][0] / drive[1][0])
    bench.measured["fio_96_at_once_over_one"] = [round(r, 2) for r in rounds]
    return f"this drive gives fio {statistics.median(rounds):.1f}x as many reads 96 at once as one by one"


def peers(bench: Bench) -> None:
    ours, figures = Ours(bench.table), {}
    serial = one_over_many(bench)
    # One peer at a time, none left mapped: a mapped page cannot be dropped, and would be the next peer's hit.
    for name, make in PEERS.items():
        peer = make(bench.table)
        if peer is None:
            figures[name] = "not installed"
            continue
        found = interleave(
            bench.table, {"ours": ours, name: peer}, 96, 4, 5, bench.uniform, bench.table.drop_cached
        )
        peer.close()
        figures[name] = {n: samples.report(96) for n, samples in found.items()}
        bench.at_least(f"cold batch of 96 against {name} (page cache, pages dropped before)", 7,
                      ratio(found[name], found["ours"]), note=serial)  # fmt: skip
    bench.measured["peers_cold_96"] = figures
    stores(bench, ours, serial)
    ours.close()


def stores(bench: Bench, ours: Ours, serial: str) -> None:
    """LMDB and rocksdict over the first rows of the table, where they are installed."""
    n = 100_000 if bench.args.quick else 1_000_000
    raw = os.open(bench.table.path, os.O_RDONLY)
    with tempfile.TemporaryDirectory(dir=bench.table.path.parent) as directory:
        for name in ("lmdb", "rocksdict"):
            try:
                module = __import__(name)
            except ImportError:
                bench.goal(
                    f"cold batch of 96 against {name}",
                    ">= 7",
                    None,
                    "x",
                    None,
                    f"{name} is not installed",
                )
                continue
            if name == "lmdb":
                env = module.open(f"{directory}/lmdb", map_size=n * 600)
                with env.begin(write=True) as txn:
                    for row in range(n):
                        txn.put(row.to_bytes(8, "big"), os.pread(raw, 264, 4096 + 264 * row), append=True)
                reader = env.begin(buffers=True)
                read = lambda row, reader=reader: bytes(reader.get(row.to_bytes(8, "big")))  # noqa: E731
            else:
                db = module.Rdict(f"{directory}/rocks", module.Options(raw_mode=True))
                for row in range(n):
                    db[row.to_bytes(8, "big")] = os.pread(raw, 264, 4096 + 264 * row)
                db.flush()
                read = lambda row, db=db: db[row.to_bytes(8, "big")]  # noqa: E731

            def few(batch: int):
                bench.seed += 1
                return bench.table.uniform(batch, bench.seed, n)

            def drop(directory=directory) -> None:
                for path in Path(directory).rglob("*"):
                    if path.is_file():
                        fd = os.open(path, os.O_RDONLY)
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                        os.close(fd)

            os.sync()
            found = interleave(
                bench.table, {"ours": ours, name: RowByRow(read)}, 96, 3, 5, few, drop
            )
            bench.measured[f"{name}_cold_96"] = {k: s.report(96) for k, s in found.items()}
            bench.at_least(
                f"cold batch of 96 against {name} ({n} rows)", 7, ratio(found[name], found["ours"]), note=serial
            )
    os.close(raw)
