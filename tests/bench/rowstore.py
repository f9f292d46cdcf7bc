"""The row store against the design it replaces, the drive it reads and other ways to read a row.

    make bench NAME=rowstore [ARGS="--quick"]

Prints one JSON object: conditions, every goal with its figure and whether it holds, and all measurements. Arms are
interleaved call by call; outputs are compared byte by byte with what the rows must be. Goals are ratios inside one run.
Direct reads everywhere but where a peer cannot; peers through the page cache have the file's pages dropped first.
A virtual machine's host may cache the drive: no absolute figure here says anything about another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import rowstore_parts as parts
from dsv41_rowstore import EngramHash, Partition, engram_geometry, layout, pack_layer
from dsv41_rowstore.cache import RowCache
from rowstore_parts import Ours, Out, Table, Threads, interleave, ratio, say

RELEASED = {
    "engram_layer_ids": [1, 14], "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 256,
    "engram_vocab_size": 16_000_000, "engram_num_embeddings": [384_006_168, 384_016_682],
    "engram_compressed_vocab_size": 99_092, "engram_pad_token_id": 2,
}  # fmt: skip


SERIAL = "bounded by how much faster this drive answers many reads than one; see measured.drive_one_over_many"

FULL = (
    "where 96 threads keep the drive full too, only its ceiling is compared; with more runnable threads than cores, "
    "one I/O thread also gets a smaller share of the processor than 96: see conditions.load_average_*"
)
KERNEL = "what is left of our cost a row is the kernel's for one direct read; the pool's varies with the load beside it"


class Bench:
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

    # ---- cold: every row comes off the drive ---------------------------------------------------------------

    def cold(self) -> None:
        arms = {"ours": Ours(self.table), "ours_4096": Ours(self.table, read_bytes=4096)}
        arms |= {f"threads_{n}": Threads(self.table, n) for n in (96, 32, 16)}
        quick = self.args.quick
        plan = [(32, 60), (48, 40), (96, 40), (200, 24), (768, 8), (32768, 1)]
        if not quick:
            plan.append((50_000, 1))
        figures, found = {}, {}
        for batch, calls in plan:
            rounds = 5 if batch < 1000 or not quick else 2
            found[batch] = interleave(self.table, arms, batch, calls, rounds, self.uniform)
            figures[batch] = {name: samples.report(batch) for name, samples in found[batch].items()}
            say(f"cold {batch}: " + ", ".join(f"{n} {f['p50_us']:.0f} us" for n, f in figures[batch].items()))
        self.measured["cold_uniform"] = figures
        large = plan[-1][0]

        def over(batch: int, name: str) -> float:
            return ratio(found[batch][name], found[batch]["ours"])

        self.at_least("cold batch of 32, p50 against 96 threads", 2.5, over(32, "threads_96"), note=FULL)
        self.at_least("cold batch of 96, rows/s against 96 threads", 1.5, over(96, "threads_96"))
        self.at_least("cold batch of 200, rows/s against 96 threads", 1.5, over(200, "threads_96"), note=FULL)
        self.at_least(
            f"cold batch of {large}, rows/s against 96 threads", 1.3, over(large, "threads_96"), note=FULL
        )
        self.at_least("cold batch of 32 against the better of 16 and 32 threads", 1.3,
                      min(over(32, "threads_16"), over(32, "threads_32")))  # fmt: skip
        self.at_least("cold batch of 96 against the better of 16 and 32 threads", 1.15,
                      min(over(96, "threads_16"), over(96, "threads_32")))  # fmt: skip
        for batch, goal in ((32, 6), (96, 6), (large, 4)):
            ours, theirs = (found[batch][n] for n in ("ours", "threads_96"))
            self.at_least(f"CPU of a missed row at {batch}: 96 threads over ours", goal,
                          (theirs.cpu_s / theirs.n_rows) / (ours.cpu_s / ours.n_rows), note=KERNEL)  # fmt: skip
        for name, goal in (("ours", 3.0), ("ours_4096", 16.6)):
            counters = arms[name].store.counters()
            self.at_most(f"bytes read per byte wanted, {arms[name].store.report['read_bytes']}-byte reads", goal,
                         counters["device_bytes"] / counters["device_reads"] / 264)  # fmt: skip
        self.measured["report"] = arms["ours"].store.report
        self._ceiling(arms["ours"])
        for arm in arms.values():
            arm.close()

    def _ceiling(self, ours: Ours) -> None:
        """fio's rate with fixed buffers, and ours, in turns within the same minute."""
        name = "share of fio's 4 KiB random read rate (io_uring, registered, depth 128) at batches of 768"
        fio = shutil.which("fio")
        if fio is None:
            self.goal(name, ">= 0.95", None, "", None, "fio is not installed")
            return
        shares, rounds = [], []
        for _ in range(3 if self.args.quick else 5):
            done = subprocess.run(
                [fio, "--name=r", f"--filename={self.table.path}", "--readonly", "--rw=randread", "--bs=4k",
                 "--direct=1", "--ioengine=io_uring", "--iodepth=128", "--fixedbufs=1", "--registerfiles=1",
                 "--runtime=2", "--time_based=1", "--output-format=json", "--norandommap=1", "--group_reporting=1"],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            iops = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]["iops"]
            out, before, begun, n = Out(768), ours.store.counters()["device_reads"], time.perf_counter(), 0
            while time.perf_counter() - begun < 2:
                ours.gather(self.uniform(768), out)
                n += 768
            rate = (ours.store.counters()["device_reads"] - before) / (time.perf_counter() - begun)
            shares.append(rate / iops)
            rounds.append({"fio_iops": round(iops), "our_reads_per_s": round(rate)})
        self.measured["ceiling"] = rounds
        self.at_least(
            name,
            0.95,
            statistics.median(shares),
            note="fio reads aligned 4 KiB blocks, we read 512 or 1024 bytes: the drive counts operations",
        )

    # ---- warm: every row is cached -------------------------------------------------------------------------

    def hits(self) -> None:
        budget = (256 if self.args.quick else 1024) << 20
        hot = budget // 264 * 6 // 10
        say(f"filling caches of {budget >> 20} MiB with {hot} rows")
        ids, out = parts.Ids(32_768), Out(32_768)
        before = parts.rss_bytes()
        arms: dict[str, object] = {"ours": Ours(self.table, budget)}
        for first in range(0, self.table.n_rows, ids.n):  # past the budget, then the hot rows once more
            if first > budget // 264 * 5 // 4:
                break
            ids.ids[:] = range(first, first + ids.n)
            arms["ours"].gather(ids, out)
        beyond = parts.rss_bytes() - before - budget
        self.at_most(
            "RSS beyond the cache budget, of 2 % and 4 MiB", 1.0, beyond / (budget * 0.02 + (4 << 20)), ""
        )
        for first in [*range(0, hot - ids.n, ids.n), hot - ids.n]:
            ids.ids[:] = range(first, first + ids.n)
            arms["ours"].gather(ids, out)
        for n in (96, 16, 1):
            arms[f"threads_{n}"] = Threads(self.table, n, budget)
            arms[f"threads_{n}"].fill(self.table, hot)

        def among_hot(n: int):
            self.seed += 1
            return self.table.uniform(n, self.seed * 7919, hot)

        figures, found = {}, {}
        for batch, calls in ((96, 300), (768, 60), (4096, 20)):
            found[batch] = interleave(self.table, arms, batch, calls, 5, among_hot)
            figures[batch] = {name: samples.report(batch) for name, samples in found[batch].items()}
            say(f"hits {batch}: " + ", ".join(f"{n} {f['p50_us']:.0f} us" for n, f in figures[batch].items()))
        self.measured["all_hits"] = figures
        self.at_least(
            "all-hit call of 96, p50 against 96 threads",
            12,
            ratio(found[96]["threads_96"], found[96]["ours"]),
        )
        self.at_least(
            "all-hit call of 96, p50 against 16 threads", 4, ratio(found[96]["threads_16"], found[96]["ours"])
        )
        self.at_least("all-hit ns/row at 96 against one thread of that design", 1.8,
                      ratio(found[96]["threads_1"], found[96]["ours"]))  # fmt: skip
        self.at_least("all-hit ns/row at 4096 against one thread of that design", 2.2,
                      ratio(found[4096]["threads_1"], found[4096]["ours"]))  # fmt: skip
        for arm in arms.values():
            arm.close()

    # ---- decode beside prefill -----------------------------------------------------------------------------

    def beside(self) -> None:
        """What a decode step of 48 rows waits while a prefill of 32,768 rows is under way."""
        figures = {}
        for name, make in (
            ("ours", lambda: Ours(self.table)),
            ("threads_96", lambda: Threads(self.table, 96)),
        ):
            arm, stop, times = make(), threading.Event(), []

            def prefill(arm=arm, stop=stop) -> None:
                out = Out(32768)
                while not stop.is_set():
                    arm.gather(self.table.uniform(32768, random.getrandbits(60)), out)

            lock = threading.Lock()  # the pool serves one job at a time: its caller has to take turns
            if name != "ours":
                plain = arm.gather

                def one_at_a_time(ids, out, plain=plain, lock=lock) -> None:
                    with lock:
                        plain(ids, out)

                arm.gather = one_at_a_time
            thread = threading.Thread(target=prefill)
            thread.start()
            out, end = Out(48), time.perf_counter() + (6 if self.args.quick else 15)
            while time.perf_counter() < end:
                ids = self.uniform(48)
                begun = time.perf_counter()
                arm.gather(ids, out)
                times.append(time.perf_counter() - begun)
                self.table.check(ids, out)
            stop.set()
            thread.join()
            arm.close()
            times.sort()
            figures[name] = {
                "p50_us": round(times[len(times) // 2] * 1e6), "p99_us": round(times[int(len(times) * 0.99)] * 1e6),
                "calls": len(times),
            }  # fmt: skip
        self.measured["decode_beside_prefill"] = figures
        self.at_least("decode step of 48 rows beside a prefill, p99 of 96 threads over ours", 10,
                      figures["threads_96"]["p99_us"] / figures["ours"]["p99_us"],
                      note="the pool serves one call at a time; no goal was given, this one is ours")  # fmt: skip

    # ---- other ways to read a row --------------------------------------------------------------------------

    def peers(self) -> None:
        ours, figures = Ours(self.table), {}
        one = interleave(self.table, {"ours": ours}, 1, 100, 3, self.uniform)["ours"]
        # One peer at a time, none left mapped: a mapped page cannot be dropped, and would be the next peer's hit.
        for name, make in parts.PEERS.items():
            peer = make(self.table)
            if peer is None:
                figures[name] = "not installed"
                continue
            found = interleave(
                self.table, {"ours": ours, name: peer}, 96, 4, 5, self.uniform, self.table.drop_cached
            )
            peer.close()
            figures[name] = {n: samples.report(96) for n, samples in found.items()}
            self.at_least(f"cold batch of 96 against {name} (page cache, pages dropped before)", 7,
                          ratio(found[name], found["ours"]), note=SERIAL)  # fmt: skip
        self.measured["peers_cold_96"] = figures
        many = interleave(self.table, {"ours": ours}, 96, 30, 3, self.uniform)["ours"]
        self.measured["drive_one_over_many"] = round(one.quantile_us(0.5) * 96 / many.quantile_us(0.5), 2)
        self._stores(ours)
        ours.close()

    def _stores(self, ours: Ours) -> None:
        """LMDB and rocksdict over the first rows of the table, where they are installed."""
        n = 100_000 if self.args.quick else 1_000_000
        raw = os.open(self.table.path, os.O_RDONLY)
        with tempfile.TemporaryDirectory(dir=self.table.path.parent) as directory:
            for name in ("lmdb", "rocksdict"):
                try:
                    module = __import__(name)
                except ImportError:
                    self.goal(
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
                    self.seed += 1
                    return self.table.uniform(batch, self.seed, n)

                def drop(directory=directory) -> None:
                    for path in Path(directory).rglob("*"):
                        if path.is_file():
                            fd = os.open(path, os.O_RDONLY)
                            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                            os.close(fd)

                os.sync()
                found = interleave(
                    self.table, {"ours": ours, name: parts.RowByRow(read)}, 96, 3, 5, few, drop
                )
                self.measured[f"{name}_cold_96"] = {k: s.report(96) for k, s in found.items()}
                self.at_least(
                    f"cold batch of 96 against {name} ({n} rows)", 7, ratio(found[name], found["ours"])
                )
        os.close(raw)

    # ---- text: what n-grams do to ranks and to the cache ---------------------------------------------------

    def text(self) -> None:
        tokens, source = text_tokens(self.args.tokens, 200_000 if self.args.quick else 6_000_000)
        rng = random.Random(0)
        mapped = list(range(99_092)) + [rng.randrange(99_092) for _ in range(129_280 - 99_092)]
        hasher = EngramHash(RELEASED, array("i", mapped))
        rows = memoryview(bytearray(8 * 24 * len(tokens))).cast("q", [len(tokens), 24])
        rates = []
        for _ in range(3):
            begun = time.perf_counter()
            hasher.sequence(1, tokens, rows)
            rates.append(24 * len(tokens) / (time.perf_counter() - begun))
        self.at_least("ids hashed on one core", 20, max(rates) / 1e6, "M rows/s")
        flat = memoryview(rows).cast("B").cast("q")
        head_sizes = engram_geometry(RELEASED)[0].head_sizes
        budget = self.args.cache_mib << 20
        reads: dict[str, list[float]] = {}
        for partition in Partition:
            for rank in range(3):
                local = local_rows(flat, head_sizes, rank, 3, partition)
                reads.setdefault(str(partition), []).append(replay(local, budget))
                if partition is Partition.BALANCED and rank == 0:
                    n_sets = RowCache(budget).n_sets
                    from ctypes import c_int64

                    skip = len(local) * 3 // 10
                    ids = (c_int64 * len(local)).from_buffer(local)
                    oracle = self.table.oracle.oracle_round_robin
                    turns = oracle(ids, c_int64(len(local)), c_int64(n_sets)) - oracle(
                        ids, c_int64(skip), c_int64(n_sets)
                    )
                    round_robin = turns / (len(local) - skip)
        unique = statistics.mean(
            len(set(flat[i : i + 98_304])) / 98_304 for i in range(0, len(flat) - 98_304, 983_040)
        )
        self.measured["text"] = {
            "source": source, "tokens": len(tokens), "cache_mib_of_this_layer": self.args.cache_mib,
            "distinct_rows_per_lookup_in_4096_tokens": round(unique, 3),
            "reads_per_lookup_by_rank": {k: [round(x, 3) for x in v] for k, v in reads.items()},
            "reads_per_lookup_round_robin_rank_0": round(round_robin, 3),
        }  # fmt: skip
        self.at_most("slowest rank's reads, balanced over contiguous, three ranks, text", 0.65,
                     max(reads["balanced"]) / max(reads["contiguous"]))  # fmt: skip
        self.at_most("reads of two-bit CLOCK over round-robin, same bytes, text", 0.96,
                     reads["balanced"][0] / round_robin)  # fmt: skip
        filler = array("q", [7]) * 4096
        rows = memoryview(bytearray(8 * 24 * 4096)).cast("q", [4096, 24])
        hasher.sequence(1, filler, rows)
        distinct = len(set(memoryview(rows).cast("B").cast("q")))
        self.measured["filler_warning"] = (
            f"4096 times one token asks for {distinct} distinct rows: it measures nothing"
        )

    # ---- the packer ----------------------------------------------------------------------------------------

    def pack(self) -> None:
        """Packing a rank of one against cp of the same bytes and a sync of it."""
        vocab = 40_000 if self.args.quick else 160_000
        directory = Path(tempfile.mkdtemp(dir=self.table.path.parent))
        try:
            checkpoint = directory / "checkpoint"
            n_bytes = make_checkpoint(checkpoint, vocab, self.table)
            source = checkpoint / "model.safetensors"
            shares, rounds = [], []
            for _ in range(3):
                took = {}
                for name in ("cp", "pack"):
                    target = directory / name
                    target.mkdir()
                    os.sync()
                    fd = os.open(source, os.O_RDONLY)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(fd)
                    begun = time.perf_counter()
                    if name == "cp":
                        subprocess.run(["cp", "--reflink=never", source, target], check=True)
                        subprocess.run(["sync", target / source.name], check=True)
                    else:
                        pack_layer(checkpoint, target, layer=1, rank=0, world_size=1, partition=Partition.BALANCED,
                                   revision="bench")  # fmt: skip
                    took[name] = time.perf_counter() - begun
                    shutil.rmtree(target)
                shares.append(took["cp"] / took["pack"])
                rounds.append({name: round(n_bytes / s / 1e6) for name, s in took.items()})
            self.measured["pack_mb_per_s"] = rounds
            self.at_least("pack rate over cp and sync of the same bytes", 0.8, statistics.median(shares))
        finally:
            shutil.rmtree(directory)

    def once(self) -> None:
        """A row is read once however often a batch asks for it."""
        arm, out = Ours(self.table), Out(960)
        ids = parts.Ids(960)
        ids.ids[:] = [1000 + i % 96 for i in range(960)]
        arm.gather(ids, out)
        self.table.check(ids, out)
        self.goal("device reads of one row in one batch", "= 1", arm.store.counters()["device_reads"] / 96, "",
                  arm.store.counters()["device_reads"] == 96)  # fmt: skip
        arm.close()


def local_rows(flat, head_sizes, rank: int, world_size: int, partition: Partition) -> array:
    """The local rows a rank looks up, token by token and, within one, in the order of the heads."""
    import numpy

    spans = layout.owned_spans(head_sizes, rank, world_size, partition)
    starts = [sum(head_sizes[:h]) for h in range(len(head_sizes))]
    columns = sorted((starts.index(span.start), span.local - span.start) for span in spans)
    by_token = numpy.frombuffer(flat, dtype=numpy.int64).reshape(-1, len(head_sizes))
    kept = by_token[:, [column for column, _ in columns]] + numpy.array([shift for _, shift in columns])
    return array("q", kept.astype(numpy.int64, copy=False).tobytes())


def replay(local: array, budget: int) -> float:
    """Reads per lookup after the first 30 %."""
    cache, skip = RowCache(budget), len(local) * 3 // 10
    cache.replay(local[:skip])
    return cache.replay(local[skip:]) / (len(local) - skip)


def text_tokens(path: str | None, most: int) -> tuple[array, str]:
    """Token ids of real text: a file of int32 ids, or the Python library's sources by words and signs."""
    if path:
        tokens = array("i", Path(path).read_bytes())
        if len(tokens) > most:  # eight stretches from all over the text, so that no one document decides
            step, part = len(tokens) // 8, most // 8
            tokens = sum((tokens[i * step : i * step + part] for i in range(8)), array("i"))
        return array("q", tokens), f"token ids of {Path(path).name} (rowstore_text.py)"
    known: dict[str, int] = {}
    tokens = array("q")
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    random.Random(1).shuffle(files)
    for file in files:
        try:
            text = file.read_text()
        except (OSError, UnicodeError):
            continue
        for word in re.findall(r"[A-Za-z]{1,6}|[0-9]{1,3}|\s+|[^\w\s]|_", text):
            tokens.append(known.setdefault(word, len(known)) % 129_280)
        if len(tokens) >= most:
            break
    return (
        tokens,
        "sources of the Python library, split into words of at most six letters, digits, signs and blanks",
    )


def make_checkpoint(path: Path, vocab: int, table: Table) -> int:
    import ctypes

    path.mkdir()
    config = {**RELEASED, "engram_vocab_size": vocab, "engram_layer_ids": [1], "engram_num_embeddings": [0]}
    try:
        engram_geometry(config)
    except layout.RowFileRefused as says:
        config["engram_num_embeddings"] = json.loads("[" + says.what.split("sum to [")[1])
    (rows,) = config["engram_num_embeddings"]
    (path / "config.json").write_text(json.dumps(config))
    tensors = {
        "layers.1.engram.embed.weight": {"dtype": "F8_E4M3", "shape": [rows, 256], "data_offsets": [0, rows * 256]},
        "layers.1.engram.embed.scale": {
            "dtype": "F8_E8M0", "shape": [rows, 8], "data_offsets": [rows * 256, rows * 264],
        },
    }  # fmt: skip
    head = json.dumps(tensors).encode()
    with open(path / "model.safetensors", "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        block = (ctypes.c_char * (65536 * 264))()
        for first in range(0, rows, 65536):
            n = min(65536, rows - first)
            table.oracle.oracle_fill(block, ctypes.c_int64(first), ctypes.c_int64(n))
            file.write(memoryview(block)[: n * 264])
        os.fsync(file.fileno())
    return rows * 264


def conditions(table: Table, args: argparse.Namespace) -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    return {
        "machine": platform.machine(), "cpu": model, "cores": os.cpu_count(), "kernel": platform.release(),
        "load_average_before": os.getloadavg(), "table_gib": round(table.n_rows * 264 / 2**30, 2),
        "directory": str(table.path.parent), "quick": args.quick, "python": platform.python_version(),
        "baseline": "tests/bench/rowstore_baseline.c, written from a prose description of the published design",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a small table and fewer calls; about two minutes"
    )
    parser.add_argument("--dir", default=os.path.join(tempfile.gettempdir(), "dsv41-bench-rowstore"))
    parser.add_argument("--tokens", help="a file of int32 token ids to use as text")
    parser.add_argument("--cache-mib", type=int, default=None, help="cache of the text replay, one layer")
    parser.add_argument("--only", help="comma-separated parts: cold,hits,beside,peers,text,pack,once")
    args = parser.parse_args()
    args.cache_mib = args.cache_mib or (32 if args.quick else 512)
    directory = Path(args.dir) / ("quick" if args.quick else "full")
    directory.mkdir(parents=True, exist_ok=True)
    Threads.library = parts.compile_c(directory, "rowstore_baseline")
    table = Table(directory, (2 << 20) if args.quick else (16 << 20))
    bench = Bench(table, args)
    where = conditions(table, args)
    for part in (args.only or "once,cold,hits,beside,peers,text,pack").split(","):
        say(f"{part} …")
        getattr(bench, part)()
    where["load_average_after"] = os.getloadavg()
    print(json.dumps({"conditions": where, "goals": bench.goals, "measured": bench.measured}, indent=1))


if __name__ == "__main__":
    main()
