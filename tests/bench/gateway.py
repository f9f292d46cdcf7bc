"""What the gateway adds to a request and to streams, side by side with no gateway at all, nginx and LiteLLM's proxy.

    make bench NAME=gateway [ARGS="--quick --table --arms direct,dsv41"]

A scripted upstream in a process of its own answers; this process asks, over kept connections, the arms taking turns.
nginx and LiteLLM are measured where they are installed (`--install` brings LiteLLM), and reported missing otherwise.
Prints one JSON object: conditions, every goal with its figure and whether it holds, and all measurements. Load,
upstream and gateway share this machine's cores; the ratios between arms are what holds elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench import gateway_arms, gateway_table  # noqa: E402
from tests.bench.gateway_arms import KEY, Arm  # noqa: E402
from tests.bench.gateway_load import Streams, asking, one_after_another, one_stream, times  # noqa: E402
from tests.bench.gateway_upstream import MODEL, RATE, stream  # noqa: E402

STREAMS, FEW_STREAMS, CONNECTIONS = 64, 8, 32
WARM_S = 0.5
BUSY, DISTURBED = 0.9, 0.2
"""Of a core: a load generator or an upstream above the first may be what limits a rate, and not the arm between them;
with other work above the second a figure is not the arm's alone."""
P50_GOAL_MS, P99_GOAL_MS = 0.5, 3.0
CORE_GOAL, DELAY_GOAL_MS = 0.25, 20.0
RSS_GOAL_BYTES, STREAM_GOAL_BYTES = 60e6, 100e3
LITELLM_GOAL = 5.0


@dataclass(frozen=True)
class Plan:
    requests: int  # in each turn of the latencies
    turns: int
    rounds: int  # of the rates and of the streams
    rate_s: float
    stream_s: float


QUICK, FULL = Plan(200, 2, 1, 2.0, 3.0), Plan(1000, 4, 3, 3.0, 5.0)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Cores:
    """How many cores the asking side, the upstream, the arm and all other work each take, from now to `used()`."""

    def __init__(self, arm: Arm, upstream: Arm) -> None:
        self._arm, self._upstream = arm, upstream
        self._began, self._before = time.monotonic(), self._taken()

    def _taken(self) -> tuple[float, ...]:
        own = time.process_time(), self._upstream.cpu_s(), self._arm.cpu_s() if self._arm.costs else 0.0
        return *own, _machine_s()[0] - sum(own)

    def used(self) -> dict[str, float]:
        """By whom, and for how many seconds that was."""
        took_s = time.monotonic() - self._began
        shares = [(now - then) / took_s for now, then in zip(self._taken(), self._before, strict=True)]
        whose = ("load_core", "upstream_core", "of_one_core", "others_core")
        return {**dict(zip(whose, shares, strict=True)), "took_s": took_s}


def _machine_s() -> tuple[float, float]:
    """Seconds that all cores have worked, and those that the machine below took away."""
    user, nice, system, _idle, _waiting, irq, soft_irq, stolen = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + soft_irq) / tick, stolen / tick


async def checked(arm: Arm) -> dict[str, Any]:
    """A stream carries every event in order. LiteLLM writes each one anew, the others may not touch a byte."""
    n_events = 2 * RATE
    text = await one_stream(arm.port, KEY, MODEL, n_events)
    sent_at = times(text)
    assert len(sent_at) == n_events and sent_at == sorted(set(sent_at)), f"{arm.name}: {len(sent_at)} events"
    same = text == stream(sent_at)
    assert same or arm.name == "litellm", f"{arm.name} changed the stream: {text[:500]!r}"
    return {"events": n_events, "same_bytes": same}


async def latencies(arms: list[Arm], plan: Plan) -> dict[str, dict[str, float]]:
    """Milliseconds of a whole one-token request on one kept connection; the arms take turns."""
    taken: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for _ in range(plan.turns):
        for arm in arms:
            taken[arm.name] += await one_after_another(arm.port, KEY, MODEL, plan.requests)
    return {
        name: {"p50_ms": round(statistics.median(t), 3), "p99_ms": round(percentile(t, 0.99), 3), "n": len(t)}
        for name, t in taken.items()
    }


async def rate(arm: Arm, upstream: Arm, seconds: float) -> dict[str, float]:
    """Requests a second that many connections get answered, each asking again at once, and who worked for it."""
    connections = [await asking(arm.port, KEY, MODEL) for _ in range(CONNECTIONS)]
    await asyncio.sleep(WARM_S)
    cores, before = Cores(arm, upstream), sum(len(c.took_ms) for c in connections)
    await asyncio.sleep(seconds)
    used, n = cores.used(), sum(len(c.took_ms) for c in connections) - before
    for connection in connections:
        connection.stop()
    await asyncio.gather(*(connection.over for connection in connections))
    return {"a_second": n / used["took_s"], "cpu_us_each": used["of_one_core"] * used["took_s"] / n * 1e6, **used}


async def streaming(arm: Arm, upstream: Arm, n_streams: int, seconds: float, late_ms: list[float]) -> dict[str, float]:
    """Many streams at once: how late each event is against the time it was sent at, and what the arm costs."""
    n_events = int(seconds * RATE)
    streams = Streams(arm.port, KEY, MODEL, n_streams, n_events)
    running = asyncio.ensure_future(streams.run())
    await asyncio.sleep(seconds * 0.2)
    cores, before = Cores(arm, upstream), len(streams.late_ms)
    await asyncio.sleep(seconds * 0.6)
    used, n = cores.used(), len(streams.late_ms) - before
    memory = arm.memory_bytes()
    await running
    assert len(streams.late_ms) == n_streams * n_events, f"{arm.name}: {len(streams.late_ms)} events came through"
    late_ms += streams.late_ms
    return {"a_second": n / used["took_s"], "cpu_us_each": used["of_one_core"] * used["took_s"] / max(1, n) * 1e6,
            "memory_bytes": memory, **used}  # fmt: skip


def _means(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.mean(r[key] for r in rounds), 3) for key in rounds[0] if key != "took_s"}


async def all_streams(arms: list[Arm], n_streams: int, plan: Plan, rest: dict[str, int]) -> dict[str, dict[str, Any]]:
    late_ms: dict[str, list[float]] = {arm.name: [] for arm in arms}
    rounds: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in arms}
    for _ in range(plan.rounds):
        for arm in arms:
            did = await streaming(arm, arms[0], n_streams, plan.stream_s, late_ms[arm.name])
            rounds[arm.name].append(did)
    return {
        name: {
            **_means(rounds[name]), "events": len(late), "late_p50_ms": round(statistics.median(late), 2),
            "late_p99_ms": round(percentile(late, 0.99), 2), "late_max_ms": round(max(late), 2),
            "bytes_a_stream": round((max(r["memory_bytes"] for r in rounds[name]) - rest[name]) / n_streams),
        }
        for name, late in late_ms.items()
    }  # fmt: skip


async def measure(arms: list[Arm], plan: Plan) -> dict[str, Any]:
    """Memory first: later a process has grown by what came before."""
    found: dict[str, Any] = {"checked": {arm.name: await checked(arm) for arm in arms}}
    found["rest_bytes"] = {arm.name: arm.memory_bytes() for arm in arms}
    for key, n in (("streams", STREAMS), ("few_streams", FEW_STREAMS)):
        found[key] = await all_streams(arms, n, plan, found["rest_bytes"])
    found["one_token"] = await latencies(arms, plan)
    rates: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in arms}
    for _ in range(plan.rounds):
        for arm in arms:
            rates[arm.name].append(await rate(arm, arms[0], plan.rate_s))
    found["rates"] = {name: _means(rounds) for name, rounds in rates.items()}
    found["end_bytes"] = {arm.name: arm.memory_bytes() for arm in arms}
    return found


def goals(found: dict[str, Any]) -> list[dict[str, Any]]:
    if "dsv41" not in found["one_token"]:
        return []
    direct, ours = found["one_token"]["direct"], found["one_token"]["dsv41"]
    streams = found["streams"]["dsv41"]
    figures: list[tuple[str, float, float]] = [
        ("added to a one-token request, p50 ms", ours["p50_ms"] - direct["p50_ms"], P50_GOAL_MS),
        ("added to a one-token request, p99 ms", ours["p99_ms"] - direct["p99_ms"], P99_GOAL_MS),
        ("of one core for 64 streams", streams["of_one_core"], CORE_GOAL),
        ("an event late at p99, ms", streams["late_p99_ms"], DELAY_GOAL_MS),
        ("memory at rest, bytes", found["rest_bytes"]["dsv41"], RSS_GOAL_BYTES),
        ("memory a stream, bytes", streams["bytes_a_stream"], STREAM_GOAL_BYTES),
    ]
    told = [{"goal": what, "at_most": most, "is": round(is_, 3), "holds": is_ <= most} for what, is_, most in figures]
    rates = found["rates"]
    if "litellm" in rates:
        ratio = rates["dsv41"]["a_second"] / rates["litellm"]["a_second"]
        told.append({"goal": "requests a second against LiteLLM's", "at_least": LITELLM_GOAL, "is": round(ratio, 2),
                     "holds": ratio >= LITELLM_GOAL})  # fmt: skip
    return told


def remarks(found: dict[str, Any]) -> list[str]:
    """Where a figure may tell more about the asking side, the upstream or the machine than about the arm."""
    cores, told = os.cpu_count() or 1, []
    for n, key in ((STREAMS, "streams"), (FEW_STREAMS, "few_streams")):
        for name, did in found[key].items():
            if did["a_second"] < BUSY * n * RATE:
                told.append(f"{n} streams, {name}: did not keep up, so events were the later the longer it went on")
    for what, key in (("requests a second", "rates"), (f"{STREAMS} streams", "streams")):
        for name, did in found[key].items():
            for who, share in (("load generator", did["load_core"]), ("upstream", did["upstream_core"])):
                if share > BUSY:
                    told.append(f"{what}, {name}: the {who} took {share:.2f} of a core and may be the limit")
            if (taken := did["load_core"] + did["upstream_core"] + did["of_one_core"]) > BUSY * cores:
                told.append(f"{what}, {name}: all took {taken:.2f} of {cores} cores, so the machine is the limit")
            if did["others_core"] > DISTURBED:
                told.append(f"{what}, {name}: other work on this machine took {did['others_core']:.2f} of a core")
    return told


async def run(plan: Plan, names: tuple[str, ...]) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    conditions: dict[str, Any] = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": platform.machine(),
        "cpu": next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?"),
        "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version(),
        "quick": plan is QUICK, "load_average_before": os.getloadavg(),
    }  # fmt: skip
    began, stolen = time.monotonic(), _machine_s()[1]
    with contextlib.ExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsv41-bench-")))
        arms, missing = await gateway_arms.start(here, names, stack)
        found = await measure(arms, plan)
        conditions["versions"] = {arm.name: arm.version for arm in arms if arm.version}
    conditions |= {"took_s": round(time.monotonic() - began), "stolen_s": round(_machine_s()[1] - stolen, 2)}
    told = {"goals": goals(found), "remarks": remarks(found), "not_measured": missing}
    return {"conditions": conditions, **told, **found}


def arms_named(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(gateway_arms.NAMES):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: there are {', '.join(gateway_arms.NAMES)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer requests, one round; the figures are rougher")
    parser.add_argument("--table", action="store_true", help="also a Markdown table, on the error output")
    parser.add_argument(
        "--arms", type=arms_named, default=gateway_arms.NAMES, help="direct,dsv41,nginx,litellm, or some"
    )
    parser.add_argument(
        "--install", action="store_true", help="first install LiteLLM's proxy below .demo/: two minutes"
    )
    args = parser.parse_args()
    if args.install:
        gateway_arms.install()
    told = asyncio.run(run(QUICK if args.quick else FULL, args.arms))
    print(json.dumps(told, indent=2))
    if args.table:
        print(gateway_table.table(told), file=sys.stderr)


if __name__ == "__main__":
    main()
