"""Fault: the management cable of a node is pulled while the fleet serves: a worker's, and the head's.

What the user sees: 503 within seconds; answers again once the cable is back, without anyone doing anything.
What the operator sees: `its supervisor has been silent for … s` (MESSAGE_ID RANK_LOST) on the head, and on every node
that the head cannot reach `the lease of boot … ran out; stopping` (MESSAGE_ID LEASE_EXPIRED).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.demo.network import Mode, mode
from dsv41_supervisor.journal import Event

from tests.harness.cables import hub_link_down
from tests.harness.faults import Fault
from tests.harness.fleet import gone, running_fleet

pytestmark = pytest.mark.skipif(mode().mode is not Mode.NAMESPACES, reason=mode().reason)


def _short(raw: dict[str, Any]) -> None:
    raw["supervisor"] |= {"lease_ttl_s": 5, "peer_timeout_s": 2}
    raw["recovery"] |= {"backoff_s": 0.5, "max_recoveries": 20}


@pytest.mark.parametrize(("cut", "orphans"), [("spark3", {"spark3"}), ("spark1", {"spark2", "spark3"})])
async def test_nodes_that_the_head_cannot_reach_stop_their_ranks_and_come_back_with_the_link(
    tmp_path: Path, demo_checkpoint: Path, cut: str, orphans: set[str]
) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, gateway=False, change=_short) as fleet:
        before = await fleet.up()
        assert before["state"] == "serving", before["refusals"]
        ranks = [fleet.rank_process(r) for r in range(3)]
        whose = "the head's" if cut == "spark1" else "a worker's"
        fault = Fault(
            f"{whose} management cable pulled while serving",
            sees="503; serves again once it is back",
            journal="the lease of boot … ran out; stopping (LEASE_EXPIRED)",
        )
        with hub_link_down(fleet.demo.network, cut):
            # What happens is read from the nodes' own logs: while it is cut, nobody can ask them over the network.
            await fleet.said("spark1", "its supervisor has been silent for", Event.RANK_LOST, 30)
            for node in sorted(orphans):
                await fleet.said(node, f"the lease of boot {before['boot']['id']} ran out", Event.LEASE_EXPIRED, 40)
            for pid in ranks:
                await gone(pid)
        after = await fleet.until_answering(lambda s: s["state"] in ("serving", "failed"), "it serves again", 120)
        assert after["state"] == "serving", after["reason"]
        assert after["boot"]["id"] != before["boot"]["id"]
        assert after["boot"]["generation"] > before["boot"]["generation"]
        fault.report(after)
