"""Fault: a node cannot be asked while the fleet is taken down.

What the user sees: `dsv41 down` ends with 69 and names the node that was not seen, instead of vouching for its rank;
the rank stops by itself when its lease ends. With the node back, `down` says that every rank is gone.
What the operator sees: `every rank is gone, but spark3 could not be asked` (FLEET_STOPPED).
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dsv41_supervisor.errors import Exit

from tests.harness.fleet import FleetUnderTest, gone, running_fleet


async def _down(fleet: FleetUnderTest) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dsv41_supervisor", "down", "--settings", str(fleet.demo.settings_path),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, out.decode(), err.decode()


async def test_down_does_not_vouch_for_a_node_that_it_could_not_ask(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False) as fleet:
        up = await fleet.up()
        assert up["state"] == "serving", up["refusals"]
        rank = fleet.rank_process(2)
        await fleet.kill_supervisor("spark3")
        status, out, err = await _down(fleet)
        assert (status, out) == (Exit.UNAVAILABLE, "")
        assert "dsv41: spark3 was not seen: " in err and "look on spark3: systemctl status" in err
        assert "spark2 was not seen" not in err
        assert "every rank is gone, but spark3 could not be asked" in fleet.log("spark1")
        await gone(rank, 60)
        await fleet.start_supervisor("spark3")
        await fleet.until(lambda s: "rank" in s["nodes"]["spark3"], "spark3 is back")
        status, out, err = await _down(fleet)
        assert (status, out.startswith("down: every rank is gone")) == (Exit.OK, True), err
