"""Fault: one process of one rank is killed with SIGKILL while the fleet serves.

What the user sees: 503 with Retry-After (within 2 s: tests/bench measures it), then answers again, without anyone
doing anything.
What the operator sees: `rank 1 failed: …` (MESSAGE_ID RANK_LOST) and `recovering: …` in the head's journal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
from dsv41_supervisor.smoke import first_key

from tests.harness.faults import Fault
from tests.harness.fleet import FleetUnderTest, kill, running_fleet

NOTICED_S = 60.0
"""A bound for a loaded machine; the figure is in the report."""


def _victim(fleet: FleetUnderTest, rank: int, which: str) -> int:
    if which == "rank process":
        return fleet.rank_process(rank)
    return fleet.engine_process(rank, which)


async def test_any_killed_process_of_any_rank_restarts_the_whole_group(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, change=_recover_at_once) as fleet:
        before = await fleet.up()
        assert before["state"] == "serving", before["refusals"]
        for rank in range(3):
            for which in ("rank process", "launcher", "scheduler", *(("detokenizer",) if rank == 0 else ())):
                before = await _kill_and_come_back(fleet, before, rank, which)
        answer = await fleet.chat()
        assert answer.completion_tokens == 8


def _recover_at_once(raw: dict[str, Any]) -> None:
    raw["recovery"] |= {"max_recoveries": 20, "backoff_s": 0}


async def _kill_and_come_back(fleet: FleetUnderTest, before: dict[str, Any], rank: int, which: str) -> dict[str, Any]:
    where = f"{which} of rank {rank}"
    old = {fleet.rank_process(r) for r in range(3)}
    fault = Fault(
        f"SIGKILL of the {which} of {'rank 0' if rank == 0 else 'a worker'} while serving",
        sees="503 with Retry-After, then answers again",
        journal="rank N failed: … (RANK_LOST); recovering: … (RECOVERY_STARTED)",
    )
    kill(_victim(fleet, rank, which))
    await fleet.until(lambda s: s["state"] == "recovering", f"the loss of the {where} was noticed", NOTICED_S)
    status, retry_after = await _chat_status(fleet)
    assert status == 503, where
    assert int(retry_after or 0) >= 1, where
    after = await fleet.until(lambda s: s["state"] == "serving", f"the fleet came back after the {where}", 60)
    assert after["boot"]["id"] != before["boot"]["id"], where
    assert after["boot"]["rendezvous_port"] != before["boot"]["rendezvous_port"], where
    assert old.isdisjoint({fleet.rank_process(r) for r in range(3)}), where
    events = [entry["what"] for entry in after["timeline"]]
    again = events[len(events) - events[::-1].index("all ranks stopped") :]
    assert again.index("workers start") < again.index("head starts") < again.index("serving"), where
    fault.report(after)
    return after


async def _chat_status(fleet: FleetUnderTest) -> tuple[int, str | None]:
    key = first_key(Path(fleet.settings.gateway.keys_file))
    body = {"model": "x", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{fleet.demo.endpoint}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}
        ) as answer,
    ):
        return answer.status, answer.headers.get("Retry-After")
