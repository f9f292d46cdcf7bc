"""Fault: a worker's supervisor and another node's rank die at the same moment, as when a node loses power.

What the user sees: 503, and the fleet serves again once the node's supervisor is back; never `a bug`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness.faults import Fault
from tests.harness.fleet import kill, running_fleet


async def test_a_node_that_comes_back_is_taken_in_again(tmp_path: Path, demo_checkpoint: Path) -> None:
    def patient(raw: dict[str, Any]) -> None:
        raw["recovery"] |= {"max_recoveries": 20, "backoff_s": 0.5}
        raw["supervisor"]["lease_ttl_s"] = 3

    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False, change=patient) as fleet:
        first = await fleet.up()
        assert first["state"] == "serving"
        lost = next(d for d in fleet.demo.daemons if d.node == "spark2")
        fault = Fault(
            "a worker's supervisor and the head's rank killed at once",
            sees="503; serves again once the node is back",
            journal="recovering: … (RECOVERY_STARTED)",
        )
        kill(lost.process.pid)
        kill(fleet.rank_process(0))
        await lost.process.wait()
        fleet.demo.daemons.remove(lost)
        recovering = await fleet.until(lambda s: s["state"] != "serving", "the loss was noticed", 60)
        assert recovering["state"] == "recovering"
        await fleet.demo.start_daemon("supervisor", "spark2")
        after = await fleet.until(lambda s: s["state"] in ("serving", "failed"), "it serves again", 60)
        assert after["state"] == "serving", after["reason"]
        assert after["boot"]["id"] != first["boot"]["id"]
        fault.report(after)
