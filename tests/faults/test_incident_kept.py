"""Fault: a rank is killed while the fleet serves, and one node's supervisor is frozen when it is asked what it saw.

What the user sees: the fleet recovers as always; nothing waits for the bundle. `dsv41 incident` has it.
What the operator gets: `lost` and `recovered` as JSON on the alert command's input, and a bundle that names the part
that could not be had.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from dsv41_supervisor.fleet.peers import read_fleet_key
from dsv41_supervisor.incident import bundle

from tests.harness.fleet import FleetUnderTest, kill, running_fleet


def dsv41(fleet: FleetUnderTest, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dsv41_supervisor", *argv, "--settings", str(fleet.demo.settings_path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


async def test_a_lost_rank_leaves_a_bundle_and_two_alerts(tmp_path: Path, demo_checkpoint: Path) -> None:
    told = tmp_path / "told"

    def alerting(raw: dict[str, Any]) -> None:
        raw["alerts"] = {"command": ["/bin/sh", "-c", f"cat >> {told}"]}
        raw["engine"]["environment"]["HF_TOKEN"] = "hf_" + "A" * 30

    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False, change=alerting) as fleet:
        first = await fleet.up()
        assert first["state"] == "serving", first["refusals"]
        kill(fleet.engine_process(1, "scheduler"))
        again = await fleet.until(
            lambda s: s["state"] == "serving" and s["boot"]["id"] != first["boot"]["id"], "it serves again"
        )
        assert again["recoveries"] == 1
        status = await fleet.until(
            lambda s: s["desk"]["alerts_delivered"] >= 2 and s["desk"]["last_incident"], "two alerts and a bundle"
        )
        # A machine that is short of memory says so too.
        events = [e for e in map(json.loads, told.read_text().splitlines()) if not e["kind"].startswith("memory-")]
        assert [e["kind"] for e in events] == ["lost", "recovered"]
        name = status["desk"]["last_incident"]
        assert events[0]["incident"] == name

        directory = fleet.settings.state_dir("spark1") / "incidents"
        parts = bundle.listing(directory, name)
        wanted = {"incident.json", "timeline.txt", "decisions.txt", "settings.json", "same-bits.json"} | {
            f"{node}/{part}"
            for node in ("spark1", "spark2", "spark3")
            for part in ("rank.log", "memory.txt", "kernel.log", "proc.txt", "versions.json", "status-then.json")
        }
        assert wanted <= parts.keys(), wanted - parts.keys()
        what = json.loads(bundle.read(directory, name, "incident.json"))
        assert what["what"] == "lost" and "rank 1 on spark2" in what["why"]
        assert what["boot"]["id"] == first["boot"]["id"]
        assert what["settings_hash"] == fleet.settings.hash
        assert what["failed_parts"] == {}
        assert "Load weight" in bundle.read(directory, name, "spark2/rank.log")
        assert len(bundle.read(directory, name, "spark3/memory.txt").splitlines()) > 2
        # What it must not hold: the key of the fleet, and the engine's token.
        everything = "".join(bundle.read(directory, name, part) for part in parts)
        assert read_fleet_key(fleet.settings, "spark1") not in everything
        assert "A" * 30 not in everything
        assert "HF_TOKEN" in everything

        listed = dsv41(fleet, "incident", "list")
        assert name in listed.stdout, listed.stderr
        shown = dsv41(fleet, "incident", "show")
        assert "spark2/rank.log" in shown.stdout, shown.stderr
        part = dsv41(fleet, "incident", "show", name, "incident.json")
        assert json.loads(part.stdout)["what"] == "lost"
        assert dsv41(fleet, "incident", "show", name, "no-such-part").returncode == 78


async def test_a_node_that_does_not_answer_costs_its_part_alone(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, nodes=2, loopback=True, gateway=False) as fleet:
        frozen = next(d for d in fleet.demo.daemons if d.node == "spark2").process.pid
        os.kill(frozen, signal.SIGSTOP)
        try:
            done = dsv41(fleet, "incident", "--json")
        finally:
            os.kill(frozen, signal.SIGCONT)
        assert done.returncode == 0, done.stderr
        name = json.loads(done.stdout)["name"]
        directory = fleet.settings.state_dir("spark1") / "incidents"
        what = json.loads(bundle.read(directory, name, "incident.json"))
        assert "does not answer" in what["failed_parts"]["spark2/everything"]
        assert what["why"].startswith("asked for by ")
        assert "spark1/memory.txt" in bundle.listing(directory, name)
