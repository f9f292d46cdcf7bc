"""Fault: SIGSTOP of a worker's scheduler: every process lives, /health says 200, and no token comes.

What the user sees: 503 once the one-token canary does not come back, then answers again.
What the operator sees: `the one-token canary did not come back within …` as the reason of the recovery.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from tests.harness.faults import Fault
from tests.harness.fleet import kill, running_fleet


async def test_a_frozen_worker_is_noticed_by_the_canary(tmp_path: Path, demo_checkpoint: Path) -> None:
    def often(raw: dict[str, Any]) -> None:
        raw["supervisor"] |= {"canary_period_s": 1, "canary_timeout_s": 2}
        raw["recovery"]["backoff_s"] = 0

    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False, change=often) as fleet:
        assert (await fleet.up())["state"] == "serving"
        fault = Fault(
            "SIGSTOP of the scheduler of a worker",
            sees="503 once the canary does not come back",
            journal="the one-token canary did not come back within … (RANK_LOST)",
        )
        kill(fleet.engine_process(2, "scheduler"), signal.SIGSTOP)
        lost = await fleet.until(lambda s: s["state"] == "recovering", "the freeze was noticed", 60)
        assert "the one-token canary did not come back within 2 s" in lost["reason"]
        fault.report(await fleet.until(lambda s: s["state"] == "serving", "the fleet came back", 60))
