"""Rows that come off the drive: against the published design, and against the drive itself."""

from __future__ import annotations

import random
import statistics
import threading
import time

from rowstore_parts import Bench, Ids, Ours, Out, Samples, Threads, fio, fio_batches, interleave, ratio, say


def once(bench: Bench) -> None:
    """A row is read once however often a batch asks for it."""
    arm, out = Ours(bench.table), Out(960)
    ids = Ids(960)
    ids.ids[:] = [1000 + i % 96 for i in range(960)]
    arm.gather(ids, out)
    bench.table.check(ids, out)
    bench.goal("device reads of one row in one batch", "= 1", arm.store.counters()["device_reads"] / 96, "",
              arm.store.counters()["device_reads"] == 96)  # fmt: skip
    arm.close()


def cold(bench: Bench) -> None:
    arms = {"ours": Ours(bench.table), "ours_4096": Ours(bench.table, read_bytes=4096)}
    arms |= {f"threads_{n}": Threads(bench.table, n) for n in (96, 32, 16)}
    quick = bench.args.quick
    plan = [(32, 60), (48, 40), (96, 40), (200, 24), (768, 8), (32768, 1)]
    if not quick:
        plan.append((50_000, 1))
    figures, found = {}, {}
    for batch, calls in plan:
        rounds = 5 if batch < 1000 or not quick else 2
        found[batch] = interleave(bench.table, arms, batch, calls, rounds, bench.uniform)
        figures[batch] = {name: samples.report(batch) for name, samples in found[batch].items()}
        say(f"cold {batch}: " + ", ".join(f"{n} {f['p50_us']:.0f} us" for n, f in figures[batch].items()))
    bench.measured["cold_uniform"] = figures
    large = plan[-1][0]

    def over(batch: int, name: str) -> float:
        return ratio(found[batch][name], found[batch]["ours"])

    drive = ceiling_of_the_ratio(bench, arms["threads_96"], large)

    def reason(batch: int, what: str = "rate", pool: str = "threads_96") -> str:
        if batch not in drive:
            return "fio is not installed"
        times = drive[batch][what] * ratio(found[batch][pool], found[batch]["threads_96"])
        return f"fio alone, as many reads at once, no cache, no copy: {times:.2f}x that pool in the same minutes"

    for batch, goal, what in ((32, 2.5, "p50"), (96, 1.5, "rows/s"), (200, 1.5, "rows/s"), (large, 1.3, "rows/s")):
        bench.at_least(f"cold batch of {batch}, {what} against 96 threads", goal, over(batch, "threads_96"),
                       note=reason(batch))  # fmt: skip
    for batch, goal in ((32, 1.3), (96, 1.15)):
        better = min(("threads_16", "threads_32"), key=lambda name, batch=batch: over(batch, name))
        bench.at_least(f"cold batch of {batch} against the better of 16 and 32 threads", goal, over(batch, better),
                       note=reason(batch, pool=better))  # fmt: skip
    for batch, goal in ((32, 6), (96, 6), (large, 4)):
        ours, theirs = (found[batch][n] for n in ("ours", "threads_96"))
        bench.at_least(f"CPU of a missed row at {batch}: 96 threads over ours", goal,
                       theirs.cpu_us_per_row() / ours.cpu_us_per_row(), note=reason(batch, "CPU"))  # fmt: skip
    for name, goal in (("ours", 3.0), ("ours_4096", 16.6)):
        counters = arms[name].store.counters()
        bench.at_most(f"bytes read per byte wanted, {arms[name].store.report['read_bytes']}-byte reads", goal,
                     counters["device_bytes"] / counters["device_reads"] / 264)  # fmt: skip
    bench.measured["report"] = arms["ours"].store.report
    share_of_fio(bench, arms["ours"])
    for arm in arms.values():
        arm.close()


def ceiling_of_the_ratio(bench: Bench, pool: Threads, large: int) -> dict[int, dict[str, float]]:
    """How far ahead of 96 threads this drive lets anybody be, in rate and in CPU a read.

    fio, one thread, io_uring, as many reads at once, in turns with the pool: where the pool fills the drive too, no
    reader can be faster than it by more than this. Of both the best of five rounds: fio tells only its mean, which
    whatever else the machine does brings down.
    """
    found: dict[int, dict[str, float]] = {}
    for batch in (32, 96, 200, large):
        at_once = min(batch, 256)
        one_by_one = batch == at_once  # every read of a batch is back before the next begins
        shape = fio_batches(at_once) if one_by_one else [f"--iodepth={at_once}", "--iodepth_batch_submit=16"]
        rounds = []
        for _ in range(5):
            drive = fio(bench.table.path, "--bs=512", *shape)
            if drive is None:
                return {}
            samples, out, end = Samples(), Out(batch), time.perf_counter() + 1.5
            samples.rounds.append([])
            while time.perf_counter() < end or not samples.n_rows:
                samples.time(pool, bench.uniform(batch), out)
            rounds.append((*drive, batch / statistics.median(samples.all()), samples.cpu_us_per_row()))
        fio_rates, fio_cpu, pool_rates, pool_cpu = zip(*rounds, strict=True)
        found[batch] = {"rate": max(fio_rates) / max(pool_rates), "CPU": min(pool_cpu) / min(fio_cpu)}
        say(f"fio over 96 threads at {batch}: {found[batch]['rate']:.2f}x, CPU {found[batch]['CPU']:.2f}x")
        bench.measured[f"fio_and_96_threads_at_{batch}"] = [[round(figure, 2) for figure in r] for r in rounds]
    bench.measured["fio_over_96_threads"] = found
    return found


def share_of_fio(bench: Bench, ours: Ours) -> None:
    """fio's rate with fixed buffers, and ours, in turns within the same minute."""
    name = "share of fio's 4 KiB random read rate (io_uring, registered, depth 128) at batches of 768"
    shares, rounds = [], []
    for _ in range(3 if bench.args.quick else 5):
        drive = fio(bench.table.path, "--bs=4k", "--iodepth=128", seconds=2)
        if drive is None:
            bench.goal(name, ">= 0.95", None, "", None, "fio is not installed")
            return
        iops, _ = drive
        out, before, begun, n = Out(768), ours.store.counters()["device_reads"], time.perf_counter(), 0
        while time.perf_counter() - begun < 2:
            ours.gather(bench.uniform(768), out)
            n += 768
        rate = (ours.store.counters()["device_reads"] - before) / (time.perf_counter() - begun)
        shares.append(rate / iops)
        rounds.append({"fio_iops": round(iops), "our_reads_per_s": round(rate)})
    bench.measured["ceiling"] = rounds
    bench.at_least(
        name,
        0.95,
        statistics.median(shares),
        note="fio reads aligned 4 KiB blocks, we read 512 or 1024 bytes: the drive counts operations",
    )


def beside(bench: Bench) -> None:
    """What a decode step of 48 rows waits while a prefill of 32,768 rows is under way."""
    figures = {}
    for name, make in (
        ("ours", lambda: Ours(bench.table)),
        ("threads_96", lambda: Threads(bench.table, 96)),
    ):
        arm, stop, times = make(), threading.Event(), []

        def prefill(arm=arm, stop=stop) -> None:
            out = Out(32768)
            while not stop.is_set():
                arm.gather(bench.table.uniform(32768, random.getrandbits(60)), out)

        lock = threading.Lock()  # the pool serves one job at a time: its caller has to take turns
        if name != "ours":
            plain = arm.gather

            def one_at_a_time(ids, out, plain=plain, lock=lock) -> None:
                with lock:
                    plain(ids, out)

            arm.gather = one_at_a_time
        thread = threading.Thread(target=prefill)
        thread.start()
        out, end = Out(48), time.perf_counter() + (6 if bench.args.quick else 15)
        while time.perf_counter() < end:
            ids = bench.uniform(48)
            begun = time.perf_counter()
            arm.gather(ids, out)
            times.append(time.perf_counter() - begun)
            bench.table.check(ids, out)
        stop.set()
        thread.join()
        arm.close()
        times.sort()
        figures[name] = {
            "p50_us": round(times[len(times) // 2] * 1e6), "p99_us": round(times[int(len(times) * 0.99)] * 1e6),
            "calls": len(times),
        }  # fmt: skip
    bench.measured["decode_beside_prefill"] = figures
    bench.at_least("decode step of 48 rows beside a prefill, p99 of 96 threads over ours", 10,
                  figures["threads_96"]["p99_us"] / figures["ours"]["p99_us"],
                  note="the pool serves one call at a time; no goal was given, this one is ours")  # fmt: skip
