"""The supervisor's figures: how fast a death is noticed, order under random faults, what the daemon costs.

Real daemons and rank processes in network namespaces, with the scripted engine made short, so that hundreds of boots
fit into minutes. Figures are of this machine; nothing here was run on GB10. Prints one JSON object: conditions, every
goal with its figure and whether it holds, and what was measured.

    python tests/bench/supervisor.py [--quick] [--only kills|faults|cost] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dsv41_supervisor.errors import Dsv41Error, PeerUnreachable  # noqa: E402
from dsv41_supervisor.fleet.peers import FLEET_HEADER, read_fleet_key  # noqa: E402
from dsv41_supervisor.units.procfs import processes, read, rss_bytes  # noqa: E402

from tests.harness.fleet import FleetUnderTest, kill, running_fleet  # noqa: E402

SHORT = {"all": {"phase_s": {"starting": 0.0, "weights": 0.1, "pools": 0.0, "warmup": 0.0}, "crash_s": 0.0,
                 "stop_s": 0.0, "peer_loss_s": 0.1}}  # fmt: skip
ENDED = ("serving", "failed", "down")
TARGETS = ("rank process", "launcher", "scheduler")


@dataclass
class Bench:
    goals: list[dict[str, Any]] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)

    def goal(self, name: str, goal: float, figure: float, unit: str, *, at_least: bool = False) -> None:
        holds = figure >= goal if at_least else figure <= goal
        self.goals.append({"name": name, "goal": goal, "figure": round(figure, 4), "unit": unit, "holds": holds})


def percentile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def quick_to_notice(raw: dict[str, Any]) -> None:
    raw["recovery"] = {"max_recoveries": 100, "window_s": 1, "backoff_s": 0, "stop_timeout_s": 5}
    raw["supervisor"] |= {"canary_period_s": 1, "canary_timeout_s": 2}
    raw["engine"]["stall"] = dict.fromkeys(
        ("starting_s", "rendezvous_s", "weights_s", "pools_s", "capture_s", "warmup_s", "serving_s"), 15
    )


def victim(fleet: FleetUnderTest, rank: int, which: str) -> int | None:
    """The process now, or None while it is not there."""
    with contextlib.suppress(AssertionError, ValueError, OSError):
        return fleet.rank_process(rank) if which == "rank process" else fleet.engine_process(rank, which)
    return None


# -- a death while serving ---------------------------------------------------------------------------------------------


async def kills(bench: Bench, fleet: FleetUnderTest, n: int) -> None:
    """SIGKILL of one process of one rank in turn: from the kill to the head's decision, and to the last rank gone."""
    status = await fleet.up()
    assert status["state"] == "serving", status["refusals"]
    noticed: list[float] = []
    stopped: list[float] = []
    back: list[float] = []
    for i in range(n):
        pid = victim(fleet, i % 3, TARGETS[i // 3 % 3])
        assert pid is not None
        killed_at, boot = time.time(), status["boot"]["id"]
        kill(pid)
        status = await fleet.until(lambda s: s["state"] == "serving" and s["boot"]["id"] != boot, "back", 60)  # noqa: B023
        entries = [e for e in status["timeline"] if e["at"] >= killed_at - 0.01]
        noticed.append(next(e["at"] for e in entries if e["what"].startswith("lost")) - killed_at)
        stopped.append(next(e["at"] for e in entries if e["what"] == "all ranks stopped") - killed_at)
        back.append(next(e["at"] for e in entries if e["what"] == "serving") - killed_at)
    bench.goal("rank death to noticed, p99", 1.0, percentile(noticed, 0.99), "s")
    bench.goal("rank death to all ranks stopped, p99", 5.0, percentile(stopped, 0.99), "s")
    bench.measured["kills"] = {
        "n": n,
        **{f"{name}_p{round(100 * q)}_s": round(percentile(values, q), 3) for q in (0.5, 0.99)
           for name, values in (("noticed", noticed), ("stopped", stopped), ("serving_again", back))},
    }  # fmt: skip


# -- random faults at random moments -----------------------------------------------------------------------------------


async def faults(bench: Bench, fleet: FleetUnderTest, n: int, seed: int) -> None:
    """Each run: up, one random fault at a random moment of the boot or of serving, wait for the end, check, down."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    wrong_order: list[str] = []
    left_behind: list[str] = []
    boot_s = 2.0
    for run in range(n):
        began = time.monotonic()
        await _patiently(fleet, "up")
        await asyncio.sleep(rng.uniform(0, 1.5 * boot_s))
        what = await _one_fault(fleet, rng)
        status = await _until_settled(fleet)
        outcomes[f"{what}: {status['state']}"] += 1
        if status["state"] == "serving":
            boot_s = min(10.0, max(0.5, status["timeline"][-1]["at"] - _began(status["timeline"])))
            if (wrong := _order(fleet, status)) is not None:
                wrong_order.append(f"run {run}, {what}: {wrong}")
        await _patiently(fleet, "down")
        status = await fleet.until_answering(lambda s: s["state"] in ("down", "failed"), "down", 90)
        left = _left(fleet)
        if status["state"] != "down" or left:
            left_behind.append(f"run {run}, {what}: {status['state']} {status['reason']} {left}")
        print(f"run {run}: {what}, {time.monotonic() - began:.1f} s", file=sys.stderr)
    bench.goal("runs with random faults that started in order", 100.0, 100 * (1 - len(wrong_order) / n), "%",
               at_least=True)  # fmt: skip
    bench.goal("runs with random faults that left something behind", 0, len(left_behind), "runs")
    bench.measured["faults"] = {"n": n, "seed": seed, "outcomes": dict(sorted(outcomes.items())),
                                "wrong_order": wrong_order, "left_behind": left_behind}  # fmt: skip


async def _one_fault(fleet: FleetUnderTest, rng: random.Random) -> str:
    """One fault; a frozen process is let go later only if it is a supervisor."""
    number = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
    if rng.random() < 0.25:
        node = rng.choice(list(fleet.settings.fleet.nodes))
        if number is signal.SIGSTOP:
            pid = fleet.supervisor(node).process.pid
            kill(pid, signal.SIGSTOP)
            await asyncio.sleep(rng.uniform(0.1, 2))
            kill(pid, signal.SIGCONT)
            return "supervisor frozen for a while"
        if number is signal.SIGTERM:
            await fleet.stop_supervisor(node)
        else:
            await fleet.kill_supervisor(node)
        await asyncio.sleep(rng.uniform(0, 1))
        await fleet.start_supervisor(node)
        return f"supervisor {number.name}"
    order = [(rank, which) for rank in range(3) for which in TARGETS]
    rng.shuffle(order)
    for rank, which in order:
        if (pid := victim(fleet, rank, which)) is not None:
            with contextlib.suppress(ProcessLookupError):
                kill(pid, number)
            return f"{which} {number.name}"
    return "nothing to hit yet"


async def _until_settled(fleet: FleetUnderTest) -> dict[str, Any]:
    """The fleet serves (and has got over the fault), or says why not."""
    since = time.monotonic()
    steady_since: float | None = None

    def settled(status: dict[str, Any]) -> bool:
        nonlocal steady_since
        ended = status["state"] in ENDED and status["state"] == ("serving" if status["wanted"] == "up" else
                                                                 status["state"])  # fmt: skip
        if not ended and status["state"] != "failed":
            steady_since = None
            return False
        steady_since = steady_since or time.monotonic()
        # A freeze is noticed by a canary that does not come back: it has to have had the time.
        return time.monotonic() - steady_since > 4.5

    status = await fleet.until_answering(settled, "the end of a fault", 120)
    assert time.monotonic() - since < 130
    return status


def _began(timeline: list[dict[str, Any]]) -> float:
    return next((e["at"] for e in reversed(timeline) if e["what"] == "checks"), timeline[-1]["at"])


def _order(fleet: FleetUnderTest, status: dict[str, Any]) -> str | None:
    """What is wrong with the order in which the ranks that serve were started, by the kernel's own start times."""
    ticks = []
    for rank in range(3):
        found = read(fleet.rank_process(rank))
        ticks.append(found.start_ticks if found is not None else -1)
    if any(ticks[0] < worker for worker in ticks[1:]):
        return f"rank 0 was started before a worker: {ticks}"
    boots = {node["boot"]["id"] if node["boot"] else None for node in status["nodes"].values()}
    return f"ranks of several boots: {boots}" if len(boots) != 1 else None


def _left(fleet: FleetUnderTest) -> list[str]:
    """Processes of this fleet that are neither its supervisors nor what those keep running."""
    marker, left = str(fleet.demo.state_root), []
    for pid in processes():
        try:
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        # The guard belongs to the supervisor and lives as long as it does.
        stays = "supervisor" in argv or any(part.endswith("/guard/__main__.py") for part in argv)
        if (marker in " ".join(argv) or marker in environment) and pid != os.getpid() and not stays:
            left.append(f"{pid} {' '.join(argv)[:120]}")
    return left


async def _patiently(fleet: FleetUnderTest, order: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            await fleet.head.call("POST", f"/fleet/{order}", {"by": "the benchmark"})
            return
        except (PeerUnreachable, Dsv41Error):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


# -- what the daemon costs ---------------------------------------------------------------------------------------------


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def cost(bench: Bench, fleet: FleetUnderTest, seconds: float) -> None:
    """Memory and processor of every supervisor while the fleet serves and nobody asks; then with 100 readers."""
    status = await fleet.up()
    assert status["state"] == "serving", status["refusals"]
    pids = {node: fleet.supervisor(node).process.pid for node in fleet.settings.fleet.nodes}
    await asyncio.sleep(3)
    before, began = {n: _cpu_s(p) for n, p in pids.items()}, time.monotonic()
    await asyncio.sleep(seconds)
    passed = time.monotonic() - began
    busy = {n: 100 * (_cpu_s(p) - before[n]) / passed for n, p in pids.items()}
    rss = {n: rss_bytes(p) / 1e6 for n, p in pids.items()}
    bench.goal("processor time of a supervisor while serving", 0.5, max(busy.values()), "% of a core")
    lag = await _readers(fleet, n=100, seconds=min(10.0, seconds))
    bench.goal("memory of a supervisor", 60.0, max(rss_bytes(p) / 1e6 for p in pids.values()), "MB")
    bench.goal("longest wait behind 100 status readers, p99", 20.0, lag["p99_ms"], "ms")
    bench.measured["cost"] = {
        "seconds": seconds, "cpu_percent": {n: round(v, 3) for n, v in busy.items()},
        "rss_mb": {n: round(v, 1) for n, v in rss.items()}, "readers": lag,
    }  # fmt: skip


async def _readers(fleet: FleetUnderTest, n: int, seconds: float) -> dict[str, Any]:
    """n readers (in a process of their own) each read the status once a second; meanwhile /liveness is asked, which
    costs next to nothing: how long it takes is how long the loop was busy with others."""
    key = read_fleet_key(fleet.settings, fleet.settings.fleet.head)
    reading = subprocess.Popen(
        [sys.executable, __file__, "--readers", str(n), "--seconds", str(seconds), "--base", fleet.head.base,
         "--fleet", fleet.settings.fleet.name],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert reading.stdin is not None and reading.stdout is not None
    reading.stdin.write(key + "\n")
    reading.stdin.flush()
    waits: list[float] = []
    async with aiohttp.ClientSession() as session:

        async def ask() -> float:
            began = time.perf_counter()
            async with session.get(f"{fleet.head.base}/liveness") as answer:
                await answer.read()
            return 1000 * (time.perf_counter() - began)

        alone = [await ask() for _ in range(50)]
        await asyncio.to_thread(reading.stdout.readline)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            waits.append(await ask())
            await asyncio.sleep(0.02)
    done = json.loads(await asyncio.to_thread(reading.stdout.readline))
    await asyncio.to_thread(reading.wait)
    floor = percentile(alone, 0.5)
    return {
        "n_readers": n, "n_reads": done["n"], "read_p50_ms": done["p50_ms"], "read_p99_ms": done["p99_ms"],
        "alone_p50_ms": round(floor, 2), "p50_ms": round(percentile(waits, 0.5), 2),
        "p99_ms": round(percentile(waits, 0.99), 2),
    }  # fmt: skip


async def read_many(args: argparse.Namespace) -> None:
    """The readers' own process."""
    headers = {"Authorization": f"Bearer {sys.stdin.readline().strip()}", FLEET_HEADER: args.fleet}
    took: list[float] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        until = time.monotonic() + args.seconds + 1

        async def read_one(i: int) -> None:
            await asyncio.sleep(i / args.readers)
            while time.monotonic() < until:
                began = time.perf_counter()
                async with session.get(f"{args.base}/status") as answer:
                    await answer.read()
                took.append(1000 * (time.perf_counter() - began))
                await asyncio.sleep(max(0.0, 1 - (time.perf_counter() - began)))

        readers = [asyncio.ensure_future(read_one(i)) for i in range(args.readers)]
        await asyncio.sleep(1)
        print("reading", flush=True)
        await asyncio.gather(*readers)
    said = {"n": len(took), "p50_ms": round(percentile(took, 0.5), 1), "p99_ms": round(percentile(took, 0.99), 1)}
    print(json.dumps(said), flush=True)


async def run(args: argparse.Namespace) -> Bench:
    bench = Bench()
    n_kills, n_faults, seconds = (9, 20, 10.0) if args.quick else (54, 200, 30.0)
    with tempfile.TemporaryDirectory(prefix="dsv41-bench-") as directory:
        checkpoint = Path(directory) / "checkpoint"
        make = [sys.executable, str(ROOT / "demo" / "make_checkpoint.py"), str(checkpoint)]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        for name in ("cost", "kills", "faults"):
            if args.only not in (None, name):
                continue
            async with running_fleet(
                Path(directory) / name, checkpoint, gateway=False, behaviour=SHORT,
                change=None if name == "cost" else quick_to_notice,
            ) as fleet:  # fmt: skip
                if name == "cost":
                    await cost(bench, fleet, seconds)
                elif name == "kills":
                    await kills(bench, fleet, n_kills)
                else:
                    await faults(bench, fleet, n_faults, args.seed)
    return bench


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="9 kills, 20 faults, 10 s of serving")
    parser.add_argument("--only", choices=("kills", "faults", "cost"))
    parser.add_argument("--seed", type=int, default=41)
    for name in ("--readers", "--seconds", "--base", "--fleet"):
        parser.add_argument(name, help=argparse.SUPPRESS, type={"--readers": int, "--seconds": float}.get(name, str))
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    if args.readers:
        asyncio.run(read_many(args))
        return 0
    began, load = time.time(), os.getloadavg()
    bench = asyncio.run(run(args))
    conditions = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)), "took_s": round(time.time() - began, 1),
        "machine": platform.machine(), "kernel": platform.release(), "python": platform.python_version(),
        "cores": os.cpu_count(), "load_before": load, "engine": "scripted", "network": "namespaces", "nodes": 3,
        "quick": args.quick, "gb10": "not run on GB10",
    }  # fmt: skip
    print(json.dumps({"conditions": conditions, "goals": bench.goals, "measured": bench.measured}, indent=1))
    return 0 if all(g["holds"] for g in bench.goals) else 1


if __name__ == "__main__":
    sys.exit(main())
