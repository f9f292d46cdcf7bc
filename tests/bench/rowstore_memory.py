"""Rows that are in memory already, and which ones real text finds there."""

from __future__ import annotations

import random
import re
import statistics
import sysconfig
import time
from array import array
from ctypes import c_int64
from pathlib import Path

from dsv41_rowstore import EngramHash, Partition, engram_geometry, layout
from dsv41_rowstore.cache import RowCache
from rowstore_parts import RELEASED, Bench, Ids, Ours, Out, Threads, interleave, ratio, rss_bytes, say


def hits(bench: Bench) -> None:
    budget = (256 if bench.args.quick else 1024) << 20
    hot = budget // 264 * 6 // 10
    say(f"filling caches of {budget >> 20} MiB with {hot} rows")
    ids, out = Ids(32_768), Out(32_768)
    before = rss_bytes()
    arms: dict[str, object] = {"ours": Ours(bench.table, budget)}
    for first in range(0, bench.table.n_rows, ids.n):  # past the budget, then the hot rows once more
        if first > budget // 264 * 5 // 4:
            break
        ids.ids[:] = range(first, first + ids.n)
        arms["ours"].gather(ids, out)
    beyond = rss_bytes() - before - budget
    bench.at_most(
        "RSS beyond the cache budget, of 2 % and 4 MiB", 1.0, beyond / (budget * 0.02 + (4 << 20)), ""
    )
    for first in [*range(0, hot - ids.n, ids.n), hot - ids.n]:
        ids.ids[:] = range(first, first + ids.n)
        arms["ours"].gather(ids, out)
    for n in (96, 16, 1):
        arms[f"threads_{n}"] = Threads(bench.table, n, budget)
        arms[f"threads_{n}"].fill(bench.table, hot)

    def among_hot(n: int):
        bench.seed += 1
        return bench.table.uniform(n, bench.seed * 7919, hot)

    figures, found = {}, {}
    for batch, calls in ((96, 300), (768, 60), (4096, 20)):
        found[batch] = interleave(bench.table, arms, batch, calls, 5, among_hot)
        figures[batch] = {name: samples.report(batch) for name, samples in found[batch].items()}
        say(f"hits {batch}: " + ", ".join(f"{n} {f['p50_us']:.0f} us" for n, f in figures[batch].items()))
    bench.measured["all_hits"] = figures
    bench.at_least(
        "all-hit call of 96, p50 against 96 threads",
        12,
        ratio(found[96]["threads_96"], found[96]["ours"]),
    )
    bench.at_least(
        "all-hit call of 96, p50 against 16 threads", 4, ratio(found[96]["threads_16"], found[96]["ours"])
    )
    bench.at_least("all-hit ns/row at 96 against one thread of that design", 1.8,
                  ratio(found[96]["threads_1"], found[96]["ours"]))  # fmt: skip
    bench.at_least("all-hit ns/row at 4096 against one thread of that design", 2.2,
                  ratio(found[4096]["threads_1"], found[4096]["ours"]))  # fmt: skip
    for arm in arms.values():
        arm.close()


def text(bench: Bench) -> None:
    tokens, source = text_tokens(bench.args.tokens, 200_000 if bench.args.quick else 15_000_000)
    rng = random.Random(0)
    mapped = list(range(99_092)) + [rng.randrange(99_092) for _ in range(129_280 - 99_092)]
    hasher = EngramHash(RELEASED, array("i", mapped))
    rows = memoryview(bytearray(8 * 24 * len(tokens))).cast("q", [len(tokens), 24])
    rates = []
    for _ in range(3):
        begun = time.perf_counter()
        hasher.sequence(1, tokens, rows)
        rates.append(24 * len(tokens) / (time.perf_counter() - begun))
    bench.at_least("ids hashed on one core", 20, max(rates) / 1e6, "M rows/s")
    flat = memoryview(rows).cast("B").cast("q")
    head_sizes = engram_geometry(RELEASED)[0].head_sizes
    budget = bench.args.cache_mib << 20
    reads: dict[str, list[float]] = {}
    for partition in Partition:
        for rank in range(3):
            local = local_rows(flat, head_sizes, rank, 3, partition)
            reads.setdefault(str(partition), []).append(replay(local, budget))
            if partition is Partition.BALANCED and rank == 0:
                n_sets = RowCache(budget).n_sets
                skip = len(local) * 3 // 10
                ids = (c_int64 * len(local)).from_buffer(local)
                oracle = bench.table.oracle.oracle_round_robin
                turns = oracle(ids, c_int64(len(local)), c_int64(n_sets)) - oracle(
                    ids, c_int64(skip), c_int64(n_sets)
                )
                round_robin = turns / (len(local) - skip)
    unique = statistics.mean(
        len(set(flat[i : i + 98_304])) / 98_304 for i in range(0, len(flat) - 98_304, 983_040)
    )
    bench.measured["text"] = {
        "source": source, "tokens": len(tokens), "cache_mib_of_this_layer": bench.args.cache_mib,
        "distinct_rows_per_lookup_in_4096_tokens": round(unique, 3),
        "reads_per_lookup_by_rank": {k: [round(x, 3) for x in v] for k, v in reads.items()},
        "reads_per_lookup_round_robin_rank_0": round(round_robin, 3),
    }  # fmt: skip
    by_rank = "; ".join(f"{name} {' '.join(f'{x:.3f}' for x in found)}" for name, found in reads.items())
    bench.at_most("slowest rank's reads, balanced over contiguous, three ranks, text", 0.65,
                  max(reads["balanced"]) / max(reads["contiguous"]), note=f"reads a lookup: {by_rank}")  # fmt: skip
    bench.at_most("reads of two-bit CLOCK over round-robin, same bytes, text", 0.96,
                 reads["balanced"][0] / round_robin)  # fmt: skip
    filler = array("q", [7]) * 4096
    rows = memoryview(bytearray(8 * 24 * 4096)).cast("q", [4096, 24])
    hasher.sequence(1, filler, rows)
    distinct = len(set(memoryview(rows).cast("B").cast("q")))
    bench.measured["filler_warning"] = (
        f"4096 times one token asks for {distinct} distinct rows: it measures nothing"
    )


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
