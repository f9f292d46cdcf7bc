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
from dsv41_supervisor.fleet.controller import FleetController
from dsv41_supervisor.fleet.crew import Crew
from dsv41_supervisor.fleet.judge import Seen
from dsv41_supervisor.fleet.orders import FleetState
from dsv41_supervisor.fleet.origin import origin
from dsv41_supervisor.fleet.record import FleetRecord
from dsv41_supervisor.node import NodeAgent, clear_reports
from dsv41_supervisor.rank.plan import PLAN, Boot, report_dir
from dsv41_supervisor.settings import parse
from dsv41_supervisor.units import UnitState, UnitStatus
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


class _StartedByHand(ProcessUnits):
    """A rank's unit whose process is still on its way to ask for admission."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(_no_unit, tmp_path)
        self.stopped: list[str] = []

    async def status(self, unit: str) -> UnitStatus:
        return UnitStatus(unit, UnitState.INACTIVE if self.stopped else UnitState.ACTIVE)

    async def stop(self, unit: str, timeout_s: float) -> UnitStatus:
        self.stopped.append(unit)
        return await self.status(unit)


@pytest.mark.parametrize("plan_is_there", [False, True])
async def test_what_is_left_of_a_boot_goes_without_the_start_that_somebody_waits_for(
    tmp_path: Path, plan_is_there: bool
) -> None:
    """`systemctl start dsv41-rank@0` right after the head's supervisor was restarted was cancelled (CI, 2026-11-30)."""
    document = with_value("supervisor.state_dir", str(tmp_path))
    document["supervisor"]["run_dir"] = str(tmp_path / "run")
    settings = parse(json.dumps(document))
    units = _StartedByHand(tmp_path)
    agent = NodeAgent(settings, "spark1", units)
    await agent.look()
    controller = FleetController(settings, agent, "a-key-of-the-fleet-0123456789abcdef")
    controller.record.boot, controller.record.generation = BOOT, BOOT.generation
    if plan_is_there:
        clear_reports(report_dir(settings, "spark1"))
        (report_dir(settings, "spark1") / PLAN).write_text("{}")
    await asyncio.wait_for(controller._adopt(), 60)
    assert units.stopped == (["dsv41-rank@0"] if plan_is_there else [])
    assert controller.state is FleetState.DOWN and controller.record.boot is None
    assert not agent.waiting
    await agent.stop_rank("down was asked for", 1.0)
    assert units.stopped, "a plain stop leaves nobody waiting"
    await controller.close()
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
