"""Fault: a worker runs out of memory while the fleet serves; and the guard itself is killed.

What the user sees: 503 with Retry-After, and the fleet serves again. The reason has node, figure and floor.
What the operator sees: `… below the floor …: killing rank 1` (MESSAGE_ID MEMORY_FLOOR), alerts `memory-kill`, `lost`,
`recovered`. A guard that is killed is back at once and watches the same rank.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.harness.fleet import gone, kill, running_fleet
from tests.harness.guard import MIB, FakeCgroup


async def test_everyone_is_told_and_the_fleet_comes_back(tmp_path: Path, demo_checkpoint: Path) -> None:
    cgroups = {node: FakeCgroup(tmp_path / f"cgroup-{node}", 900 * MIB) for node in ("spark1", "spark2")}
    told = tmp_path / "told"

    def guarded(raw: dict[str, Any]) -> None:
        raw["guard"] = {"floor_bytes": 100 * MIB, "cgroup_dir": f"{tmp_path}/cgroup-{{node}}"}
        raw["alerts"] = {"command": ["/bin/sh", "-c", f"cat >> {told}"]}
        raw["recovery"]["backoff_s"] = 2

    async with running_fleet(
        tmp_path, demo_checkpoint, nodes=2, loopback=True, gateway=False, change=guarded
    ) as fleet:
        first = await fleet.up()
        assert first["state"] == "serving", first["refusals"]
        # The guard is killed: its next life watches the same rank.
        before = first["nodes"]["spark2"]["memory"]["guard"]["pid"]
        kill(before)
        await fleet.until(
            lambda s: s["nodes"]["spark2"]["memory"]["guard"]["connected"]
            and s["nodes"]["spark2"]["memory"]["guard"]["pid"] != before,
            "the guard is back",
        )
        ranks = [fleet.rank_process(r) for r in range(2)]
        cgroups["spark2"].leave(90 * MIB)
        # The boot that follows must find enough again, however late this test hears of the loss.
        await gone(ranks[1])
        cgroups["spark2"].leave(900 * MIB)
        lost = await fleet.until(lambda s: s["state"] != "serving", "it was noticed")
        assert "rank 1 on spark2" in lost["reason"], lost["reason"]
        assert "is 0.09 GiB, below the floor of 0.10 GiB: killing rank 1" in lost["reason"]
        again = await fleet.until(
            lambda s: s["state"] == "serving" and s["boot"]["id"] != first["boot"]["id"], "it serves again", 60
        )
        assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks)
        assert again["recoveries"] == 1
        wanted = {"memory-kill", "lost", "recovered"}
        await fleet.until(lambda _: wanted <= set(_events(told)), f"alerts {sorted(wanted)}")
        events = _events(told)
        assert events["memory-kill"]["node"] == "spark2"
        assert "below the floor" in events["lost"]["sentence"]


def _events(told: Path) -> dict[str, dict[str, Any]]:
    """Alerts by kind; a line that is still being written is not one yet."""
    lines = told.read_text().splitlines(keepends=True) if told.exists() else []
    return {event["kind"]: event for event in (json.loads(line) for line in lines if line.endswith("\n"))}
