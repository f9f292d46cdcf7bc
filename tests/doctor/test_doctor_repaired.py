"""A fleet that was started with a wrong rail (by an override) and is repaired while it serves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from dsv41_supervisor.demo.network import Mode, mode
from dsv41_supervisor.journal import Event

from tests.harness.fleet import running_fleet


async def test_a_rail_that_is_repaired_after_an_override_is_not_degraded(tmp_path: Path, demo_checkpoint: Path) -> None:
    probe = mode()
    if probe.mode is not Mode.NAMESPACES or shutil.which("ip") is None:
        pytest.skip(f"needs network namespaces and ip: {probe.reason}")
    async with running_fleet(tmp_path, demo_checkpoint) as fleet:
        rail = fleet.settings.fleet.nodes["spark2"].rails["a"]

        def ip(*words: str) -> None:
            argv = fleet.demo.network.argv_in("spark2", ["ip", *words])
            subprocess.run(argv, check=True, timeout=30)

        ip("addr", "flush", "dev", rail.interface)
        ip("addr", "add", "10.99.0.1/24", "dev", rail.interface)
        override = ["rail-address", "rail-route", "rail-neighbour", "ends-cabling", "rail-subnet"]
        await fleet.head.call("POST", "/fleet/up", {"by": "a test", "override": override})
        await fleet.until(lambda s: s["state"] in ("serving", "failed"), "up", 60)
        status = await fleet.status()
        assert status["state"] == "serving", status["refusals"]
        assert status["nodes"]["spark2"]["fabric"]["state"] == "as launched"

        # Step by step, as the doctor advises; the half-way state may show, the end must not.
        ip("addr", "del", "10.99.0.1/24", "dev", rail.interface)
        ip("addr", "add", str(rail.address), "dev", rail.interface)
        await fleet.said("spark2", "addresses is .* as the settings want it; at launch it was", Event.FABRIC_CHANGED)
        await fleet.until(lambda s: s["nodes"]["spark2"]["fabric"]["state"] == "as launched", "the mark gone")

        # And from now on it may not go again.
        ip("addr", "del", str(rail.address), "dev", rail.interface)
        await fleet.until(lambda s: s["nodes"]["spark2"]["fabric"]["state"] == "degraded", "the mark of a new fault")
        ip("addr", "add", str(rail.address), "dev", rail.interface)
