"""Fault: the head is rebooted: every process of it is gone at once; its state directory is kept, or lost with the disk.

What the user sees: with the state kept, the fleet serves again by itself once the head's supervisor is back. With the
state lost it is down and says so; one `dsv41 up` brings it back, with a newer boot than any node has ever seen.
What the operator sees: `boot … cannot be adopted; stopping what is left of it` in the audit log, and on the workers
`rank N failed: …`, or `the lease of boot … ran out` (MESSAGE_ID LEASE_EXPIRED).
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.units.procfs import processes

from tests.harness.faults import Fault
from tests.harness.fleet import FleetUnderTest, gone, kill, running_fleet


def _everything_of_the_head(fleet: FleetUnderTest) -> list[int]:
    supervisor = fleet.supervisor("spark1").process.pid
    table, found = processes(), {supervisor}
    while more := {p.pid for p in table.values() if p.parent in found} - found:
        found |= more
    return sorted(found)


@pytest.mark.parametrize("state", ["kept", "lost"])
async def test_the_fleet_comes_back_after_a_reboot_of_the_head(
    tmp_path: Path, demo_checkpoint: Path, state: str
) -> None:
    def short(raw: dict[str, Any]) -> None:
        raw["supervisor"] |= {"lease_ttl_s": 5, "peer_timeout_s": 3}
        raw["recovery"] |= {"backoff_s": 0.5, "max_recoveries": 20}

    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False, change=short) as fleet:
        before = await fleet.up()
        assert before["state"] == "serving", before["refusals"]
        workers = [fleet.rank_process(r) for r in (1, 2)]
        daemon = fleet.supervisor("spark1")
        fault = Fault(
            f"the head reboots, its state {state}",
            sees="serves again by itself" if state == "kept" else "down; one `up` brings it back",
            journal="boot … cannot be adopted" if state == "kept" else "the lease of boot … ran out (LEASE_EXPIRED)",
        )
        victims = _everything_of_the_head(fleet)
        assert len(victims) >= 4, victims
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):  # some end with those killed before them
                kill(pid)
        await daemon.process.wait()
        fleet.demo.daemons.remove(daemon)
        for pid in victims:
            await gone(pid)
        # What a reboot takes: everything in /run.
        shutil.rmtree(fleet.settings.run_dir("spark1"), ignore_errors=True)
        if state == "lost":
            shutil.rmtree(fleet.settings.state_dir("spark1"))
        await fleet.start_supervisor("spark1")
        if state == "kept":
            after = await fleet.until_answering(
                lambda s: s["state"] == "failed" or s["state"] == "serving", "it serves by itself", 120
            )
            assert after["state"] == "serving", after["reason"]
            assert "cannot be adopted" in fleet.audit()
        else:
            down = await fleet.until_answering(lambda s: s["state"] == "down", "the head answers", 60)
            assert down["wanted"] == "down" and down["boot"] is None
            for pid in workers:
                await gone(pid)
            fault.mark("stopped")
            after = await fleet.up(90)
            assert after["state"] == "serving", after["refusals"]
        for pid in workers:
            await gone(pid, 1)
        assert after["boot"]["generation"] > before["boot"]["generation"]
        assert all(n["highest_generation"] == after["boot"]["generation"] for n in after["nodes"].values())
        fault.mark("serving")
        fault.report()
