"""Fault: less memory available than the floor, from the first second of loading.

What the user sees: `dsv41 up` names the figure and the floor; the ranks are gone within a second of crossing.
What the operator sees: `MemAvailable is …, below the floor of …: killing rank N` (MESSAGE_ID MEMORY_FLOOR).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness.faults import Fault
from tests.harness.fleet import running_fleet


async def test_a_rank_is_killed_while_loading_when_memory_is_below_the_floor(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    def impossible(raw: dict[str, Any]) -> None:
        raw["guard"] = {"floor_bytes": 1 << 50, "period_s": 0.1}

    slow = {"all": {"phase_s": {"weights": 30}}}
    async with running_fleet(
        tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False, change=impossible, behaviour=slow
    ) as fleet:
        fault = Fault(
            "MemAvailable below the floor while loading",
            sees="`up` names figure and floor; the rank is gone",
            journal="MemAvailable is …, below the floor of …: killing rank N (MEMORY_FLOOR)",
        )
        status = await fleet.up()
        fault.report(status)
        assert status["state"] == "failed"
        (refusal,) = status["refusals"]
        assert "below the floor of 1048576.00 GiB: killing rank 0" in refusal["what"]
        assert status["nodes"]["spark1"]["measured"]["n_processes"] == 0
