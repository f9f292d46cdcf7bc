"""Fault: a rank is killed while the fleet serves, and the operator wants new requests held over the recovery.

What the user sees: an answer, later, and no error for what was sent during the recovery.
What the operator sees: the same as without `gateway.hold_s`; `dsv41_gateway_held_requests` on /metrics meanwhile.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from tests.harness.faults import Fault
from tests.harness.fleet import kill, running_fleet


def _hold(raw: dict[str, Any]) -> None:
    raw["recovery"] |= {"backoff_s": 0}
    raw["gateway"] |= {"hold_s": 240}


async def test_requests_sent_during_a_recovery_are_answered_after_it(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, change=_hold) as fleet:
        before = await fleet.up()
        assert before["state"] == "serving", before["refusals"]
        fault = Fault(
            "SIGKILL of a worker's scheduler, with gateway.hold_s",
            sees="the answer, after the recovery",
            journal="rank N failed: … (RANK_LOST); recovering: … (RECOVERY_STARTED)",
        )
        # Time enough for all three to be seen waiting at once.
        fleet.script({"all": {"phase_s": {"weights": 3}}})
        kill(fleet.engine_process(1, "scheduler"))
        await fleet.until(lambda s: s["state"] == "recovering", "the loss was noticed", 60)
        asked = [asyncio.create_task(fleet.chat()) for _ in range(3)]
        await _held(fleet, 3)
        answers = await asyncio.gather(*asked)
        assert [answer.completion_tokens for answer in answers] == [8, 8, 8]
        after = await fleet.until(lambda s: s["state"] == "serving", "the fleet came back", 60)
        assert after["boot"]["id"] != before["boot"]["id"]
        fault.report(after)
        await _held(fleet, 0)


async def _held(fleet: Any, n: int) -> None:
    """As the metrics say it, on the management address with the fleet's key."""
    settings = fleet.settings
    head = settings.fleet.nodes[settings.fleet.head]
    url = f"http://{head.management_address}:{settings.gateway.port}/metrics"
    key = settings.path(settings.fleet.key_file, settings.fleet.head).read_text().strip()
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            async with session.get(url, headers={"Authorization": f"Bearer {key}"}) as response:
                if f"dsv41_gateway_held_requests {n}\n" in await response.text():
                    return
            await asyncio.sleep(0.05)
