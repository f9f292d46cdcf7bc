"""Fault: a fleet that served loses a rank again and again.

What the user sees: after `max_recoveries` in the window the fleet stays down and says why.
What the operator sees: the alert command gets `gave-up` once with that sentence, after `lost` and `recovered`; the
second `lost` within `repeat_s` is not told. `dsv41 up` starts again from nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.harness.fleet import kill, running_fleet


async def test_recoveries_are_bounded_and_the_alert_goes_out_once(tmp_path: Path, demo_checkpoint: Path) -> None:
    alerts = tmp_path / "alerts"

    def bounded(raw: dict[str, Any]) -> None:
        raw["recovery"] |= {"max_recoveries": 1, "backoff_s": 0}
        raw["alerts"] = {"command": ["/bin/sh", "-c", f"cat >> {alerts}"]}

    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False, change=bounded) as fleet:
        first = await fleet.up()
        assert first["state"] == "serving"
        kill(fleet.engine_process(1, "scheduler"))
        again = await fleet.until(
            lambda s: s["state"] == "serving" and s["boot"]["id"] != first["boot"]["id"], "one recovery"
        )
        assert again["recoveries"] == 1
        kill(fleet.engine_process(1, "scheduler"))
        down = await fleet.until(lambda s: s["state"] == "failed", "it gave up")
        assert "1 recoveries within 3600 s did not hold; staying down. Last reason: rank 1 on spark2" in down["reason"]
        await fleet.until(lambda s: s["desk"]["alerts_delivered"] >= 3, "every alert was delivered")
        # A machine that is short of memory says so too.
        told = [e for e in map(json.loads, alerts.read_text().splitlines()) if not e["kind"].startswith("memory-")]
        assert [event["kind"] for event in told] == ["lost", "recovered", "gave-up"]
        assert told[2]["sentence"] == down["reason"]
        assert (await fleet.up())["state"] == "serving"
