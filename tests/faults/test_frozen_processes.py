"""Fault: SIGSTOP of a process that lives on without moving: `dsv41 rank N`, and the head's launcher.

What the user sees: 503 once it is noticed (15 s without a report of the rank; a canary that does not come back), then
answers again.
What the operator sees: `its process is frozen: no report for 15 s`, or `the one-token canary did not come back within
… s` (MESSAGE_ID RANK_LOST).
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from dsv41_supervisor.journal import Event

from tests.harness.faults import Fault
from tests.harness.fleet import gone, kill, running_fleet


async def test_a_frozen_rank_process_and_a_frozen_launcher_are_noticed_killed_and_replaced(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    def often(raw: dict[str, Any]) -> None:
        raw["supervisor"] |= {"canary_period_s": 1, "canary_timeout_s": 3}
        raw["recovery"] |= {"backoff_s": 0, "max_recoveries": 20}

    cases = [
        ("rank process", 1, "its process is frozen: no report for"),
        ("launcher", 0, "the one-token canary|the engine does not answer"),
        ("scheduler", 0, "the one-token canary|the engine does not answer"),
    ]
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False, change=often) as fleet:
        before = await fleet.up()
        assert before["state"] == "serving", before["refusals"]
        for which, rank, said in cases:
            pid = fleet.rank_process(rank) if which == "rank process" else fleet.engine_process(rank, which)
            fault = Fault(
                f"SIGSTOP of the {which} of rank {rank}",
                sees="503, then answers again",
                journal=f"{said.split('|')[0]} … (RANK_LOST)",
            )
            kill(pid, signal.SIGSTOP)
            await fleet.until(lambda s: s["state"] == "recovering", f"the frozen {which} was noticed", 60)
            await fleet.said(fleet.settings.fleet.by_rank(rank), said, Event.RANK_LOST)
            await gone(pid)
            after = await fleet.until(lambda s: s["state"] in ("serving", "failed"), "it serves again", 60)
            assert after["state"] == "serving", after["reason"]
            assert after["boot"]["id"] != before["boot"]["id"]
            fault.report(after)
            before = after
