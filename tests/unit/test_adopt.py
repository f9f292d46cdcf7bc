"""Adopting a boot after a restart of the head: what is not known yet is waited for, and is no difference."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dsv41_supervisor.changes import Changes
from dsv41_supervisor.fleet import origin as origin_module
from dsv41_supervisor.fleet.adopt import adopt
from dsv41_supervisor.fleet.crew import Crew
from dsv41_supervisor.fleet.judge import Seen
from dsv41_supervisor.fleet.origin import origin
from dsv41_supervisor.fleet.record import FleetRecord
from dsv41_supervisor.node import NodeAgent
from dsv41_supervisor.rank.plan import Boot
from dsv41_supervisor.settings import parse
from dsv41_supervisor.units.process import ProcessUnits, UnitDefinition

from tests.unit.fleets import good, with_value

BOOT = Boot("20261130T043529-ea1df410", 4, 20000)


def _status(rank: int, same: dict[str, str], *, known: bool) -> dict[str, Any]:
    return {
        "rank_number": rank, "boot": {"id": BOOT.id}, "hold": "running", "same": same, "same_known": known,
        "rank": {"state": "ready", "sentence": "ready"},
    }  # fmt: skip


def _crew(statuses: dict[str, dict[str, Any]]) -> SimpleNamespace:
    """What `adopt` asks of the crew; the statuses can change under it."""
    return SimpleNamespace(
        take_up=lambda boot: None, own_newer=lambda look: None, settings=parse(json.dumps(good())), silent=[],
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


def _no_unit(name: str) -> UnitDefinition:
    raise AssertionError(f"{name} was started")


@pytest.mark.parametrize("ours", [True, False])
async def test_a_newer_boot_that_this_head_began_is_not_another_heads(tmp_path: Path, ours: bool) -> None:
    settings = parse(json.dumps(with_value("supervisor.state_dir", str(tmp_path))))
    agent = NodeAgent(settings, "spark1", ProcessUnits(_no_unit, tmp_path))
    record = FleetRecord(tmp_path, wanted_up=True, boot=BOOT, generation=BOOT.generation)
    changes = Changes()
    crew = Crew(settings, agent, "a-key-of-the-fleet-0123456789abcdef", changes, record)
    began = origin(settings, "spark1") if ours else "0a1b2c"
    newer = Boot(f"20261130T050000-{began}-00112233", BOOT.generation + 1, 20001)
    statuses = {
        name: _status(rank, {"settings hash": "7"}, known=True)
        | {"boot": newer.to_json(), "highest_generation": newer.generation}
        for rank, name in enumerate(settings.fleet.in_rank_order)
    }
    crew.look = lambda: Seen(settings.fleet, statuses, dict.fromkeys(statuses, 0.0))  # type: ignore[method-assign]
    for name, member in crew.members.items():
        if name != "spark1":
            member.status = statuses[name]  # type: ignore[misc]
    why_not = await asyncio.wait_for(adopt(crew, BOOT), 30)
    if ours:
        assert (why_not, record.boot, crew.sequence.generation) == (None, newer, newer.generation)
        assert FleetRecord.load(tmp_path).boot == newer
    else:
        assert why_not == f"another head has begun {newer.id}: spark1 says so"
    await crew.close()
    await agent.close()


def test_the_origin_of_a_boot_is_one_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = parse(json.dumps(with_value("supervisor.state_dir", str(tmp_path))))
    here = origin(settings, "spark1")
    assert here == origin(settings, "spark1") and len(here) == 6
    elsewhere = parse(json.dumps(with_value("supervisor.state_dir", str(tmp_path / "another"))))
    assert here != origin(elsewhere, "spark1")
    (tmp_path / "machine-id").write_text("another machine")
    monkeypatch.setattr(origin_module, "MACHINE_ID", tmp_path / "machine-id")
    assert here != origin(settings, "spark1")
