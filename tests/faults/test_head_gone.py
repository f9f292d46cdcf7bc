"""Fault: the head's supervisor dies and does not come back; nobody is left to tell but the worker.

What the user sees: 503 from the gateway. What the operator gets: the worker's own `head-silent` alert and a bundle in
the worker's state directory; its rank is gone (MESSAGE_ID LEASE_EXPIRED).
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from dsv41_supervisor.fleet.peers import SupervisorClient
from dsv41_supervisor.incident import bundle

from tests.harness.fleet import kill, running_fleet


async def test_a_worker_that_lost_its_head_tells_people_itself(tmp_path: Path, demo_checkpoint: Path) -> None:
    told = tmp_path / "told"

    def alone(raw: dict[str, Any]) -> None:
        raw["supervisor"]["lease_ttl_s"] = 4
        raw["alerts"] = {"command": ["/bin/sh", "-c", f"cat >> {told}"]}

    async with running_fleet(tmp_path, demo_checkpoint, nodes=2, loopback=True, gateway=False, change=alone) as fleet:
        assert (await fleet.up())["state"] == "serving"
        head = next(d for d in fleet.demo.daemons if d.node == "spark1")
        kill(head.process.pid)
        await head.process.wait()
        fleet.demo.daemons.remove(head)
        directory = fleet.settings.state_dir("spark2") / "incidents"
        deadline = time.monotonic() + 60
        while not (told.exists() and told.read_text().endswith("\n") and bundle.entries(directory)):
            assert time.monotonic() < deadline, "neither told nor kept"
            await asyncio.sleep(0.05)
        # A machine that is short of memory says so too.
        events = [e for e in map(json.loads, told.read_text().splitlines()) if not e["kind"].startswith("memory-")]
        assert [(e["kind"], e["told_by"]) for e in events] == [("head-silent", "spark2")]
        (entry,) = bundle.entries(directory)
        assert events[0]["incident"] == entry.name
        assert "spark2/rank.log" in bundle.listing(directory, entry.name)
        async with SupervisorClient(fleet.settings, "spark2") as worker:
            status = (await worker.call("GET", "/status"))["nodes"]["spark2"]
        assert status["rank"]["state"] == "failed"
        # Back, so that the end of the test finds someone to ask.
        await fleet.demo.start_daemon("supervisor", "spark1")
        await fleet.until_answering(lambda s: s["state"] in ("down", "failed", "serving", "recovering"), "it is back")
