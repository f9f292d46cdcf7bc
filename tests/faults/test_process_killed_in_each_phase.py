"""Fault: kill -9 of each process of each rank while the fleet loads, warms, and drains (serving has its own file).

What the user sees: while loading or warming, `dsv41 up` ends with the rank, the process and its last lines, and is not
tried again; while draining, the running stream ends with an error and the fleet is down, as it was asked to be.
What the operator sees: `rank N failed: …` (MESSAGE_ID RANK_LOST) on that node, `the boot failed: …` on the head.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from dsv41_supervisor.errors import Dsv41Error
from dsv41_supervisor.journal import Event

from tests.harness.faults import Fault
from tests.harness.fleet import FleetUnderTest, gone, kill, running_fleet

# One fleet for all: each fault leaves it down, with nothing left behind.
pytestmark = pytest.mark.asyncio(loop_scope="module")
# Of two workers that do the same, the first is killed in the long leg only.
PROCESSES = [
    pytest.param(rank, which, marks=pytest.mark.slow if rank == 1 else ())
    for rank in range(3)
    for which in ("rank process", "launcher", "scheduler", *(("detokenizer",) if rank == 0 else ()))
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory, demo_checkpoint: Path) -> AsyncIterator[FleetUnderTest]:
    def at_once(raw: dict[str, Any]) -> None:
        raw["recovery"] |= {"max_recoveries": 50, "backoff_s": 0}

    async with running_fleet(tmp_path_factory.mktemp("phases"), demo_checkpoint, loopback=True, change=at_once) as one:
        yield one


def _victim(fleet: FleetUnderTest, rank: int, which: str) -> int:
    return fleet.rank_process(rank) if which == "rank process" else fleet.engine_process(rank, which)


@pytest.mark.parametrize(("rank", "which"), PROCESSES)
@pytest.mark.parametrize("phase", ["loading", "warming"])
async def test_a_process_killed_before_it_served_ends_the_boot_by_name(
    fleet: FleetUnderTest, phase: str, rank: int, which: str
) -> None:
    fleet.script({"all": {"phase_s": {"weights" if phase == "loading" else "warmup": 120}}})
    await fleet.head.call("POST", "/fleet/up", {"by": "a test"})
    # Warming is what the head does; the workers say that they serve as soon as they listen.
    there = {"loading": ("loading",), "warming": ("warming", "ready")}[phase]
    loaded = await fleet.until(
        lambda s: all(
            n.get("rank", {}).get("state") in there and n["rank"]["phase"] not in ("starting", "rendezvous")
            for n in s["nodes"].values()
        ),
        f"every rank is {phase}",
        60,
    )
    pids = [fleet.rank_process(r) for r in range(3)]
    node = fleet.settings.fleet.by_rank(rank)
    fault = Fault(
        f"SIGKILL of the {which} of {'rank 0' if rank == 0 else 'a worker'} while {phase}",
        sees="`up` ends with rank and reason; not tried again",
        journal=f"rank {'0' if rank == 0 else 'N'} failed: … (RANK_LOST); the boot failed: …",
    )
    kill(_victim(fleet, rank, which))
    failed = await fleet.until(lambda s: s["state"] == "failed", "the boot failed", 40)
    fault.report(failed)
    assert failed["wanted"] == "down"
    assert loaded["boot"]["id"] not in [(n["boot"] or {}).get("id") for n in failed["nodes"].values()]
    assert rank in {r["rank"] for r in failed["refusals"]}, failed["refusals"]
    assert all(n["measured"]["n_processes"] == 0 for n in failed["nodes"].values())
    for pid in pids:
        await gone(pid, 5)
    await fleet.said(node, f"rank {rank} failed: ", Event.RANK_LOST)
    await fleet.said("spark1", "the boot failed:")


@pytest.mark.parametrize(("rank", "which"), PROCESSES)
async def test_a_process_killed_while_draining_does_not_keep_the_fleet_from_going_down(
    fleet: FleetUnderTest, rank: int, which: str
) -> None:
    fleet.script({"all": {"tokens_per_s": 5}})
    status = await fleet.up()
    assert status["state"] == "serving", status["refusals"]
    pids = [fleet.rank_process(r) for r in range(3)]
    first = asyncio.Event()
    stream = asyncio.ensure_future(fleet.chat(max_tokens=900, show=lambda text: first.set()))
    await asyncio.wait_for(first.wait(), 30)
    await fleet.head.call("POST", "/fleet/drain", {"by": "a test"})
    await fleet.until(lambda s: s["state"] == "draining", "it drains")
    fault = Fault(
        f"SIGKILL of the {which} of {'rank 0' if rank == 0 else 'a worker'} while draining",
        sees="the stream ends with an error; down",
        journal="every rank is gone (FLEET_STOPPED)",
    )
    kill(_victim(fleet, rank, which))
    down = await fleet.until(lambda s: s["state"] in ("down", "failed"), "it is down", 60)
    fault.mark("stopped")
    assert down["state"] == "down", down["reason"]
    with contextlib.suppress(Dsv41Error):
        answer = await asyncio.wait_for(stream, 30)
        assert answer.completion_tokens < 900, "the stream cannot have ended well"
    assert stream.done()
    assert all(n["measured"]["n_processes"] == 0 for n in down["nodes"].values())
    for pid in pids:
        await gone(pid, 5)
    fault.report()
