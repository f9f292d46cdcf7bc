"""Fault: somebody ends a rank's unit politely (`systemctl stop`, or SIGTERM to `dsv41 rank N`).

What the user sees: rank 0 is the fleet's switch, so it goes down and stays down; any other rank is a lost one, and the
fleet is back after a recovery. Journal: STOPPED_BY_HAND, with the unit's name.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.harness.fleet import running_fleet


async def test_rank_0_stopped_by_hand_takes_the_fleet_down(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, gateway=False) as fleet:
        await fleet.up()
        os.kill(fleet.rank_process(0), signal.SIGTERM)
        status = await fleet.until(lambda s: s["state"] == "down", "the fleet to be down", 60)
        assert status["wanted"] == "down"
        assert all(node["rank"]["state"] == "stopped" for node in status["nodes"].values())
        assert "recovering" not in {line.split()[0] for _, line in fleet.seen}
        log = (tmp_path / "fleet/spark1/supervisor.log").read_text()
        assert "rank 0 was stopped by hand (systemctl stop dsv41-rank@0)" in log


async def test_a_worker_stopped_by_hand_is_a_lost_rank(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, gateway=False) as fleet:
        status = await fleet.up()
        assert status["state"] == "serving", status["refusals"]
        boot = status["boot"]["id"]
        os.kill(fleet.rank_process(1), signal.SIGTERM)
        status = await fleet.until(
            lambda s: s["state"] == "serving" and s["boot"]["id"] != boot, "another boot to serve", 60
        )
        assert status["recoveries"] == 1, (status["timeline"], fleet.seen)
        assert any("stopped by hand on spark2" in entry["what"] for entry in status["timeline"]), status["timeline"]
