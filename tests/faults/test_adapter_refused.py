"""Fault: one rank cannot arm an adapter that was asked for.

What the user sees: `dsv41 up` names rank, adapter and reason; 78, and it is not tried again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness.fleet import running_fleet


async def test_a_rank_that_refuses_an_adapter_stops_the_boot(tmp_path: Path, demo_checkpoint: Path) -> None:
    def ask(raw: dict[str, Any]) -> None:
        raw["adapters"] = {"engram_nvme": {}}

    behaviour = {"ranks": {"2": {"refuse_arming": "the target is 1234, known are 5678 (0.5.23)"}}}
    async with running_fleet(
        tmp_path, demo_checkpoint, loopback=True, gateway=False, change=ask, behaviour=behaviour
    ) as fleet:
        status = await fleet.up()
        assert status["state"] == "failed"
        (refusal,) = [r for r in status["refusals"] if r["rank"] == 2]
        assert "adapter engram_nvme refused" in refusal["what"]
        assert "the target is 1234, known are 5678" in refusal["what"]
        assert refusal["transient"] is False
        assert status["wanted"] == "down"
        fleet.script({})
        served = await fleet.up()
        assert served["state"] == "serving"
        assert all(n["rank"]["armed"] == {"engram_nvme": "armed"} for n in served["nodes"].values())
