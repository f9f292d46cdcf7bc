"""Fault: the wall clock of the head, and of a worker, jumps by a day: forwards, back, and to before the boot.

What the user sees: nothing. Leases, timeouts, stall timers and back-off are on the monotonic clock; the bounded number
of recoveries is not refreshed by a clock that jumped over the window.
What the operator sees: a jump in the logs' times, and no other line.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clock import JumpingClock, compiler_here
from tests.harness.faults import Fault
from tests.harness.fleet import FleetUnderTest, kill, running_fleet

pytestmark = pytest.mark.skipif(compiler_here() is None, reason="no C compiler for the library that moves a clock")
TTL_S = 4
DAY_S = 86400


async def test_leases_and_bounds_do_not_look_at_the_wall_clock(
    tmp_path: Path, demo_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = JumpingClock(tmp_path)

    def short(raw: dict[str, Any]) -> None:
        raw["supervisor"]["lease_ttl_s"] = TTL_S
        raw["recovery"] |= {"backoff_s": 0, "max_recoveries": 2, "window_s": 3600}

    for name, value in clock.environment.items():
        # Of the supervisors; nothing of their environment reaches a rank.
        monkeypatch.setenv(name, value)
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False, change=short) as fleet:
        monkeypatch.undo()
        before = await fleet.up()
        assert before["state"] == "serving", before["refusals"]
        for words, offset_s in (("forwards", DAY_S), ("back", -DAY_S), ("to 1970", -50 * 365 * DAY_S)):
            fault = Fault(f"wall clock of every supervisor jumps by a day, {words}" if "1970" not in words
                          else f"wall clock of every supervisor jumps {words}",
                          sees="nothing", journal="none")  # fmt: skip
            clock.jump(offset_s)
            await _serves_for(fleet, before, 2 * TTL_S, words)
            fault.report()
        entries = fleet.log("spark1")
        assert "ran out" not in entries and "silent" not in entries

        clock.jump(0)
        for i, offset_s in enumerate((0, DAY_S)):
            clock.jump(offset_s)
            kill(fleet.engine_process(1, "scheduler"))
            again = await fleet.until(
                lambda s, before=before: s["state"] == "failed"
                or (s["state"] == "serving" and s["boot"]["id"] != before["boot"]["id"]),
                f"recovery {i + 1}",
                60,
            )
            assert again["state"] == "serving", again["reason"]
            before = again
        # Within the same minute, whatever the clock says: two recoveries were the limit.
        assert before["recoveries"] == 2
        clock.jump(2 * DAY_S)
        fault = Fault("recoveries at the limit, wall clock jumps over the window", sees="stays down and says why",
                      journal="2 recoveries within 3600 s did not hold (RECOVERY_GIVEN_UP)")  # fmt: skip
        kill(fleet.engine_process(1, "scheduler"))
        failed = await fleet.until(lambda s: s["state"] == "failed", "it gave up", 60)
        assert "2 recoveries within 3600 s did not hold" in failed["reason"]
        fault.report()


async def _serves_for(fleet: FleetUnderTest, before: dict[str, Any], seconds: float, words: str) -> None:
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    while loop.time() < ends:
        status = await fleet.status()
        assert (status["state"], status["boot"]) == ("serving", before["boot"]), (words, status["reason"])
        assert status["nodes"]["spark2"]["lease_left_s"] <= TTL_S, words
        await asyncio.sleep(0.25)
