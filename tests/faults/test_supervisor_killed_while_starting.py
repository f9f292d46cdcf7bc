"""Fault: kill -9 of a worker's supervisor while the fleet starts, before its engine runs; it comes back at once.

What the user sees: the boot ends and says which supervisor was restarted; the next `up` serves. It used to wait for an
hour, also when another rank had failed meanwhile: the node that had forgotten the boot hid every failure.
"""

from __future__ import annotations

from pathlib import Path

from tests.harness.faults import Fault
from tests.harness.fleet import running_fleet


async def test_a_supervisor_restarted_during_a_boot_ends_that_boot(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False) as fleet:
        await fleet.head.call("POST", "/fleet/up", {"by": "a test"})
        await fleet.until(lambda s: s["nodes"]["spark3"].get("prepare", {}).get("boot") is not None, "the checks")
        fault = Fault(
            "kill -9 of a worker's supervisor before its engine runs, restarted at once",
            sees="the boot fails and names the node",
            journal="its supervisor was restarted while the fleet was starting",
        )
        await fleet.kill_supervisor("spark3")
        await fleet.start_supervisor("spark3")
        status = await fleet.until(lambda s: s["state"] in ("failed", "serving"), "the boot to end", 60)
        if status["state"] == "failed":
            assert "its supervisor" in status["reason"], status["reason"]
        else:
            # It was quick enough to run beside its new supervisor.
            assert status["nodes"]["spark3"]["rank"]["state"] == "ready"
        fault.report(status)
        await fleet.heard("spark3")
        assert (await fleet.up())["state"] == "serving"
