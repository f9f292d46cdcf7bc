"""Fault: a cable between two nodes is pulled: while the fleet is down, and while it serves.

What the user sees: `dsv41 up` refuses with node, rail and interface, on both ends, and starts nothing; a fleet that
serves names the rail in its status within seconds, and goes on for as long as tokens move.
What the operator sees: the refusal (MESSAGE_ID STAGE_REFUSED), or the rail in `dsv41 status --json`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from dsv41_supervisor.demo.network import Mode, mode
from dsv41_supervisor.journal import Event

from tests.harness.cables import link_down
from tests.harness.faults import Fault
from tests.harness.fleet import running_fleet

pytestmark = pytest.mark.skipif(mode().mode is not Mode.NAMESPACES, reason=mode().reason)


async def test_a_pulled_cable_is_named_on_both_ends_and_nothing_starts_over_it(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, gateway=False) as fleet:
        rails = fleet.settings.fleet.nodes["spark1"].rails
        rail, here = next((name, r) for name, r in rails.items() if r.peer == "spark2")
        fault = Fault(
            "a cable pulled while the fleet is down",
            sees="`up` refuses, naming node, rail and interface",
            journal="spark1 rank 0, fabric: … (STAGE_REFUSED)",
        )
        with link_down(fleet.demo.network, "spark1", here.interface):
            failed = await fleet.up()
            assert failed["state"] == "failed"
            assert {r["node"] for r in failed["refusals"]} == {"spark1", "spark2"}
            for refusal in failed["refusals"]:
                assert refusal["stage"] == "fabric", refusal
            said = " ".join(r["what"] for r in failed["refusals"])
            assert here.interface in said and f"rail {rail}" in said, said
            await fleet.said("spark1", f"fabric: .*{here.interface}", Event.STAGE_REFUSED)
            assert all(n["rank"]["state"] == "absent" for n in failed["nodes"].values())
        fault.report(failed)

        assert (await fleet.up())["state"] == "serving"
        fault = Fault(
            "a cable pulled while serving",
            sees="the rail is named; answers go on while tokens move",
            journal="rail … in `dsv41 status`",
        )
        with link_down(fleet.demo.network, "spark1", here.interface):
            for node in ("spark1", "spark2"):
                await fleet.until(
                    lambda s, node=node: "down" in [r["state"] for r in s["nodes"][node]["rails"].values()],
                    f"{node} shows the rail down",
                )
            fault.mark("noticed")
            status = await fleet.status()
            assert status["state"] == "serving"
            assert status["nodes"]["spark1"]["rails"][rail] == {"interface": here.interface, "state": "down"}
            assert {r["state"] for r in status["nodes"]["spark3"]["rails"].values()} == {"up"}
        await fleet.until(
            lambda s: all(r["state"] == "up" for n in s["nodes"].values() for r in n["rails"].values()), "all up again"
        )
        fault.report()
