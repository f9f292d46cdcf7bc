"""A worker whose head is gone tells people, also when its rank ended before its lease: by the rank 0 that it lost."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from dsv41_supervisor.fleet.lease import Hold
from dsv41_supervisor.node import NodeAgent
from dsv41_supervisor.rank.plan import Boot
from dsv41_supervisor.rank.state import RankState
from dsv41_supervisor.settings import parse
from dsv41_supervisor.units.process import ProcessUnits

from tests.unit.fleets import with_value

BOOT = Boot("20261130T043529-ea1df410", 4, 20000)
TTL_S = 0.3


@pytest.mark.parametrize("head_lives", [False, True])
async def test_a_rank_that_failed_with_its_head_is_told_of(tmp_path: Path, head_lives: bool) -> None:
    document = with_value("supervisor.state_dir", str(tmp_path))
    document["supervisor"] |= {"run_dir": str(tmp_path / "run"), "lease_ttl_s": TTL_S}
    agent = NodeAgent(parse(json.dumps(document)), "spark2", ProcessUnits(_no_unit, tmp_path))
    told: list[str] = []
    agent.head_is_silent = told.append
    # Far from running out: it is the failure that is told of, not the lease.
    agent.lease.book = replace(agent.lease.book, boot=BOOT, hold=Hold.RUNNING, expires_at_s=time.monotonic() + 100)
    agent.rank.state = RankState.READY
    agent.fail("its process ended")
    if head_lives:
        await agent.stop_rank("rank 1 was lost", 0.0, generation=BOOT.generation)
    if head_lives:
        await asyncio.sleep(3 * TTL_S)
    else:
        async with asyncio.timeout(60):
            while not told:
                await asyncio.sleep(0.02)
    await agent.close()
    if head_lives:
        assert told == []
    else:
        assert told == ["spark2: the head is silent; rank 1 failed: its process ended"]


def _no_unit(name: str) -> None:  # type: ignore[return]
    raise AssertionError(f"{name} was started")
