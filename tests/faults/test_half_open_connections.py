"""Fault: packets between the head and a worker are dropped silently, one way or both: no FIN, no RST, links up.

What the user sees: 503 within seconds, and answers again once packets arrive.
What the operator sees: `rank 1 on spark2: its supervisor has been silent for … s` (MESSAGE_ID RANK_LOST).
No order waits for TCP to give up (which takes minutes): every request has its own bound.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.demo.network import Mode, mode
from dsv41_supervisor.journal import Event

from tests.harness.cables import silent_drop
from tests.harness.faults import Fault
from tests.harness.fleet import gone, running_fleet

pytestmark = pytest.mark.skipif(mode().mode is not Mode.NAMESPACES, reason=mode().reason)


def _short(raw: dict[str, Any]) -> None:
    raw["supervisor"] |= {"lease_ttl_s": 5, "peer_timeout_s": 2}
    raw["recovery"] |= {"backoff_s": 0.5, "max_recoveries": 20}


async def test_half_open_connections_are_noticed_by_silence_and_not_by_tcp(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    ways = {
        "from the head to a worker": [("spark1", "spark2")],
        "from a worker to the head": [("spark2", "spark1")],
        "both ways": [("spark1", "spark2"), ("spark2", "spark1")],
    }
    async with running_fleet(tmp_path, demo_checkpoint, gateway=False, change=_short) as fleet:
        before = await fleet.up()
        assert before["state"] == "serving", before["refusals"]
        for way, pairs in ways.items():
            ranks = [fleet.rank_process(r) for r in range(3)]
            fault = Fault(
                f"packets dropped silently {way}",
                sees="503; serves again when they arrive",
                journal="rank 1 on spark2: its supervisor has been silent for … s (RANK_LOST)",
            )
            with contextlib.ExitStack() as stack:
                for sender, receiver in pairs:
                    stack.enter_context(silent_drop(fleet.demo.network, sender, receiver))
                lost = await fleet.until(lambda s: s["state"] != "serving", f"noticed {way}", 30)
                assert "rank 1 on spark2: its supervisor has been silent" in lost["reason"], (way, lost["reason"])
                for pid in ranks:
                    await gone(pid)
            after = await fleet.until(lambda s: s["state"] in ("serving", "failed"), f"it serves again {way}", 120)
            assert after["state"] == "serving", (way, after["reason"])
            assert after["boot"]["id"] != before["boot"]["id"], way
            fault.report(after)
            before = after
        await fleet.said("spark1", "rank 1 on spark2: its supervisor has been silent", Event.RANK_LOST)
