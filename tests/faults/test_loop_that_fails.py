"""Fault: an order to one node fails in a way that nobody foresaw (a directory stands where the rank's log should be).

What the user sees: `failed` with the reason, every rank stopped; `dsv41 down` ends in `down`, `dsv41 up` works again
once the cause is gone.
"""

from __future__ import annotations

from pathlib import Path

from tests.harness.fleet import running_fleet


async def test_no_rank_outlives_a_boot_that_ended_unexpectedly(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False) as fleet:
        blocked = fleet.settings.run_dir("spark1") / "rank-0.log"
        blocked.mkdir(parents=True)
        failed = await fleet.up()
        assert failed["state"] == "failed"
        assert str(blocked) in " ".join(r["what"] for r in failed["refusals"])
        stopped = await fleet.until(
            lambda s: all(n["measured"]["n_processes"] == 0 for n in s["nodes"].values()), "nothing runs", 60
        )
        assert all(node["boot"] is None for node in stopped["nodes"].values())
        await fleet.head.call("POST", "/fleet/down", {})
        await fleet.until(lambda s: s["state"] == "down", "down after a failure")
        blocked.rmdir()
        assert (await fleet.up())["state"] == "serving"
