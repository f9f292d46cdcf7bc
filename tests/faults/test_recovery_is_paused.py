"""Fault: a rank dies while a person works on the machines and has paused recovery.

What the user sees: 503; the fleet stays down until `dsv41 resume`, also when the head's supervisor is restarted.
What the operator sees: `recovery is paused by …` in `dsv41 status`, and both decisions in `dsv41 status --decisions`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness.fleet import kill, running_fleet


async def test_nothing_recovers_until_somebody_resumes(tmp_path: Path, demo_checkpoint: Path) -> None:
    def at_once(raw: dict[str, Any]) -> None:
        raw["recovery"]["backoff_s"] = 0

    async with running_fleet(tmp_path, demo_checkpoint, gateway=False, change=at_once) as fleet:
        first = await fleet.up(120)
        assert first["state"] == "serving", first["refusals"]
        status, said = await fleet.dsv41("pause")
        assert (status, said.strip()) == (0, "recovery is paused")
        kill(fleet.engine_process(1, "scheduler"))
        held = await fleet.until(lambda s: s["state"] == "failed", "it stays down", 60)
        assert held["reason"].startswith("recovery is paused, and rank ")
        assert all(node["measured"]["n_processes"] == 0 for node in held["nodes"].values())
        await fleet.kill_supervisor("spark1")
        await fleet.start_supervisor("spark1")
        again = await fleet.until_answering(lambda s: s["state"] == "failed", "it still stays down", 60)
        assert again["reason"] == held["reason"]
        assert again["paused_by"] is not None
        _, shown = await fleet.dsv41("status")
        assert "recovery is paused by" in shown
        assert (await fleet.dsv41("resume"))[0] == 0
        after = await fleet.until(lambda s: s["state"] == "serving", "it came back", 120)
        assert after["boot"]["id"] != first["boot"]["id"]
        _, decisions = await fleet.dsv41("status", "--decisions")
        lines = decisions.splitlines()
        paused, held_at, resumed = (
            next(i for i, line in enumerate(lines) if text in line)
            for text in ("recovery is paused, because", "staying down until resume", "recovery is resumed")
        )
        assert paused < held_at < resumed
