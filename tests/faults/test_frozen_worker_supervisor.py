"""Fault: SIGSTOP of a worker's supervisor: its rank serves, and nobody watches it.

What the user sees: 503 within `peer_timeout_s`, and answers again once that supervisor moves.
What the operator sees: `rank 1 on spark2: its supervisor has been silent for … s` (MESSAGE_ID RANK_LOST) on the head;
the rank itself ends when its lease does: nobody starts a second one beside it.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from dsv41_supervisor.journal import Event

from tests.harness.faults import Fault
from tests.harness.fleet import gone, kill, running_fleet


async def test_a_frozen_supervisor_of_a_worker_is_noticed_and_its_rank_ends_with_its_lease(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    def short(raw: dict[str, Any]) -> None:
        raw["supervisor"] |= {"lease_ttl_s": 5, "peer_timeout_s": 2}
        raw["recovery"] |= {"backoff_s": 0.5, "max_recoveries": 20}

    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False, change=short) as fleet:
        before = await fleet.up()
        assert before["state"] == "serving", before["refusals"]
        frozen, rank = fleet.supervisor("spark2").process.pid, fleet.rank_process(1)
        fault = Fault(
            "SIGSTOP of a worker's supervisor",
            sees="503; serves again once it moves",
            journal="rank 1 on spark2: its supervisor has been silent for … s (RANK_LOST)",
        )
        kill(frozen, signal.SIGSTOP)
        try:
            lost = await fleet.until(lambda s: s["state"] == "recovering", "the silence was noticed", 30)
            assert "rank 1 on spark2: its supervisor has been silent for" in lost["reason"]
            await fleet.said("spark1", "rank 1 on spark2: its supervisor has been silent", Event.RANK_LOST)
            code, text = await fleet.dsv41("status")
            assert code == 69 and "spark2: its supervisor is silent" in text, text
            await gone(rank)
        finally:
            kill(frozen, signal.SIGCONT)
        after = await fleet.until(lambda s: s["state"] in ("serving", "failed"), "it serves again", 90)
        assert after["state"] == "serving", after["reason"]
        assert after["boot"]["id"] != before["boot"]["id"]
        fault.report(after)
