"""Adopting a boot after a restart of the head: what is not known yet is waited for, and is no difference."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from dsv41_supervisor.changes import Changes
from dsv41_supervisor.fleet.adopt import adopt
from dsv41_supervisor.rank.plan import Boot
from dsv41_supervisor.settings import parse

from tests.unit.fleets import good

BOOT = Boot("20261130T043529-ea1df410", 4, 20000)


def _status(rank: int, same: dict[str, str], *, known: bool) -> dict[str, Any]:
    return {
        "rank_number": rank, "boot": {"id": BOOT.id}, "hold": "running", "same": same, "same_known": known,
        "rank": {"state": "ready", "sentence": "ready"},
    }  # fmt: skip


def _crew(statuses: dict[str, dict[str, Any]]) -> SimpleNamespace:
    """What `adopt` asks of the crew; the statuses can change under it."""
    return SimpleNamespace(
        sequence=SimpleNamespace(taken_up=lambda boot: None), settings=parse(json.dumps(good())), silent=[],
        changes=Changes(), look=lambda: SimpleNamespace(statuses=statuses), other_head=lambda look: None,
    )  # fmt: skip


@pytest.mark.parametrize(("head_has", "why"), [("a1", None), ("b2", "the nodes do not agree on the closure hash: ")])
async def test_a_head_that_still_reads_what_it_has_is_waited_for(head_has: str, why: str | None) -> None:
    whole = {"settings hash": "7", "closure hash": "a1"}
    statuses = {
        "spark1": _status(0, {"settings hash": "7"}, known=False),
        "spark2": _status(1, whole, known=True),
        "spark3": _status(2, whole, known=True),
    }
    crew = _crew(statuses)
    adopting = asyncio.ensure_future(adopt(crew, BOOT))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not adopting.done(), "a node was judged by what it does not know yet"
    statuses["spark1"] = _status(0, whole | {"closure hash": head_has}, known=True)
    crew.changes.bump()
    found = await asyncio.wait_for(adopting, 10)
    assert found is None if why is None else str(found).startswith(why)
