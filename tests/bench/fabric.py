"""How long `dsv41 doctor` takes on three nodes, and how soon a change of a rail is noticed while the fleet serves.

    make bench NAME=fabric [ARGS="--quick"]

Real supervisors in network namespaces (root), the scripted engine where SGLang would be, real veth cables. Prints one
JSON object: conditions, every goal with its figure and whether it holds, and all measurements. RDMA tables (GIDs) are
not among the changes: this machine has no RDMA devices (`not run on GB10`). On a machine that does other work as well,
`chrt -r 1` in front shows what it takes alone; the conditions say so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dsv41_supervisor.demo.network import Mode, mode  # noqa: E402
from dsv41_supervisor.fleet.peers import SupervisorClient  # noqa: E402

from tests.harness.fleet import FleetUnderTest, running_fleet  # noqa: E402

DOCTOR_GOAL_S = 2.0
NOTICED_GOAL_S = 2.0
GIVE_UP_S = 30.0


def conditions(quick: bool) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    return {
        "machine": platform.machine(), "cpu": model, "cores": os.cpu_count(), "kernel": platform.release(),
        "load_average_before": os.getloadavg(), "python": platform.python_version(), "quick": quick,
        "scheduling": {os.SCHED_OTHER: "other", os.SCHED_RR: "round robin, before other work"}.get(
            os.sched_getscheduler(0), "another"
        ),
        "fleet": "three supervisors in network namespaces of one machine, veth cables, scripted engine",
        "not_shown": "GID changes and RDMA facts: there are no RDMA devices here",
    }  # fmt: skip


async def doctor(fleet: FleetUnderTest, *options: str) -> tuple[float, float, float]:
    """Wall time of the whole command, time of asking and judging in it, and its CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = [sys.executable, "-m", "dsv41_supervisor", "doctor", "--json", *options]
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *argv, "--settings", str(fleet.demo.settings_path), stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    out, _ = await process.communicate()
    took_s = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took_s, json.loads(out)["took_s"], cpu_s


def supervisors_cpu_s(fleet: FleetUnderTest) -> float:
    """CPU seconds, user and system, that the nodes' supervisors have used so far."""
    ticks = 0
    for node in fleet.settings.fleet.nodes:
        raw = Path(f"/proc/{fleet.supervisor(node).process.pid}/stat").read_text()
        fields = raw[raw.rindex(")") + 2 :].split()
        # With what its children used that have ended: tools that it asked.
        ticks += sum(int(n) for n in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


class Rail:
    """One rail of one node, and how to change it."""

    def __init__(self, fleet: FleetUnderTest, node: str, name: str) -> None:
        self._fleet = fleet
        self.node, self.name = node, name
        rail = fleet.settings.fleet.nodes[node].rails[name]
        self.interface, self.address = rail.interface, str(rail.address)

    def ip(self, command: str) -> None:
        text = command.format(dev=self.interface, address=self.address)
        subprocess.run(self._fleet.demo.network.argv_in(self.node, ["ip", *text.split()]), check=True, timeout=30)


async def noticed_s(rail: Rail, client: SupervisorClient, what: str, change: str, back: str) -> float:
    """From the change until the supervisor's status tells it. The rail is put back, and that is waited for as well."""
    began = time.monotonic()
    rail.ip(change)
    took = await _until(client, began, lambda said: any(f"{what} was" in text for text in said["sentences"]), what)
    rail.ip(back)
    if what in ("carrier", "state"):
        rail.ip("addr replace {address} dev {dev}")
    await _until(client, time.monotonic(), lambda said: not said["sentences"], f"{what} put back")
    return took


async def _until(client: SupervisorClient, began: float, holds: Callable[[dict[str, Any]], bool], what: str) -> float:
    while True:
        fabric = await _fabric(client)
        took_s = time.monotonic() - began
        if holds(fabric):
            return took_s
        if took_s > GIVE_UP_S:
            raise SystemExit(f"not noticed within {GIVE_UP_S:g} s: {what}; last {fabric['sentences']}")
        await asyncio.sleep(0.02)


async def _fabric(client: SupervisorClient) -> dict[str, Any]:
    status = await client.call("GET", "/node/watch", timeout_s=10)
    fabric = status.get("fabric") or status["nodes"][client.node]["fabric"]
    return dict(fabric)


async def repeat(n: int, work: Callable[[], Awaitable[float]]) -> list[float]:
    return [await work() for _ in range(n)]


def figures(values: list[float]) -> dict[str, Any]:
    return {"n": len(values), "median": round(statistics.median(values), 3), "worst": round(max(values), 3)}


async def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    n = 3 if quick else 10
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint"
        make = [sys.executable, str(ROOT / "demo" / "make_checkpoint.py"), str(checkpoint)]
        subprocess.run(make, check=True, stdout=sys.stderr)
        async with running_fleet(Path(folder), checkpoint, gateway=False) as fleet:
            before = await asyncio.gather(*(_rss(fleet, node) for node in fleet.settings.fleet.nodes))
            used_s, began = supervisors_cpu_s(fleet), time.monotonic()
            await asyncio.sleep(2)
            idle = (supervisors_cpu_s(fleet) - used_s) / (time.monotonic() - began)
            used_s, began = supervisors_cpu_s(fleet), time.monotonic()
            visits = [await doctor(fleet) for _ in range(n)]
            # Without what they use while nobody asks.
            asked_s = (supervisors_cpu_s(fleet) - used_s - idle * (time.monotonic() - began)) / n
            measured["doctor, whole command, s"] = figures([whole for whole, _, _ in visits])
            measured["doctor, asking and judging, s"] = figures([inside for _, inside, _ in visits])
            measured["doctor, CPU of the command, s"] = figures([cpu for _, _, cpu in visits])
            measured["doctor, CPU of the three supervisors a visit, s"] = round(max(0.0, asked_s), 3)
            total_s = statistics.median(cpu for _, _, cpu in visits) + max(0.0, asked_s)
            measured["doctor, CPU of all processes a visit, s"] = round(total_s, 3)
            deep = await doctor(fleet, "--deep")
            measured["doctor --deep without a collective, s"] = round(deep[0], 3)
            after = await asyncio.gather(*(_rss(fleet, node) for node in fleet.settings.fleet.nodes))
            measured["supervisors' memory, MB"] = {"before": max(before), "after all visits": max(after)}

            await fleet.up()
            rail = Rail(fleet, "spark2", "b")
            async with SupervisorClient(fleet.settings, "spark2") as client:
                for what, change, back in (
                    ("carrier", None, None),
                    ("MTU", "link set {dev} mtu 1500", "link set {dev} mtu 9000"),
                    ("addresses", "addr del {address} dev {dev}", "addr add {address} dev {dev}"),
                ):
                    took = []
                    for _ in range(n):
                        if change is None:
                            took.append(await _carrier(fleet, client))
                        else:
                            assert back is not None
                            took.append(await noticed_s(rail, client, what, change, back))
                    measured[f"{what} changed while serving, noticed after, s"] = figures(took)
            measured["the fleet while rails changed"] = (await fleet.status())["state"]
    return measured, _goals(measured)


async def _carrier(fleet: FleetUnderTest, client: SupervisorClient) -> float:
    """The other end of the cable goes down, so that this one loses its carrier."""
    other = Rail(fleet, "spark3", "b")
    began = time.monotonic()
    other.ip("link set {dev} down")
    took = await _until(client, began, lambda said: any("carrier was" in t for t in said["sentences"]), "carrier")
    other.ip("link set {dev} up")
    await _until(client, time.monotonic(), lambda said: not said["sentences"], "the carrier put back")
    return took


async def _rss(fleet: FleetUnderTest, node: str) -> float:
    async with SupervisorClient(fleet.settings, node) as client:
        status = await client.call("GET", "/node/watch", timeout_s=10)
    return round(status["supervisor"]["rss_bytes"] / 1e6, 1)


def _goals(measured: dict[str, Any]) -> list[dict[str, Any]]:
    wanted = [("doctor on three nodes, whole command", measured["doctor, whole command, s"]["worst"], DOCTOR_GOAL_S)]
    for what in ("carrier", "MTU", "addresses"):
        noticed = measured[f"{what} changed while serving, noticed after, s"]
        wanted.append((f"a changed {what} noticed while serving", noticed["worst"], NOTICED_GOAL_S))
    wanted.append(
        ("supervisor's memory after all visits", measured["supervisors' memory, MB"]["after all visits"], 80.0)
    )
    return [
        {
            "name": name,
            "goal": goal,
            "figure": figure,
            "unit": "MB" if "memory" in name else "s",
            "holds": figure < goal,
        }
        for name, figure, goal in wanted
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three repetitions of each instead of ten")
    args = parser.parse_args()
    probe = mode()
    if probe.mode is not Mode.NAMESPACES:
        print(f"bench fabric: needs network namespaces: {probe.reason}. Run it as root.", file=sys.stderr)
        return 69
    where = conditions(args.quick)
    measured, goals = asyncio.run(measure(args.quick))
    print(json.dumps({"conditions": where, "goals": goals, "measured": measured}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
