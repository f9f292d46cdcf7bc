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

from tests.harness.fleet import kill, running_fleet
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
        lost = await fleet.until(lambda s: s["state"] != "serving", "it was noticed")
        assert "rank 1 on spark2" in lost["reason"], lost["reason"]
        assert "is 0.09 GiB, below the floor of 0.10 GiB: killing rank 1" in lost["reason"]
        cgroups["spark2"].leave(900 * MIB)
        again = await fleet.until(
            lambda s: s["state"] == "serving" and s["boot"]["id"] != first["boot"]["id"], "it serves again", 60
        )
        assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks)
        assert again["recoveries"] == 1
        await fleet.until(lambda s: s["desk"]["alerts_delivered"] >= 3, "alerts")
        events = {e["kind"]: e for e in map(json.loads, told.read_text().splitlines())}
        assert {"memory-kill", "lost", "recovered"} <= set(events), sorted(events)
        assert events["memory-kill"]["node"] == "spark2"
        assert "below the floor" in events["lost"]["sentence"]
