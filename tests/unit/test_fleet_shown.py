"""What the head shows of the fleet: figures of one moment beside a state of the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dsv41_supervisor.fleet.controller import FleetController
from dsv41_supervisor.fleet.orders import FleetState
from dsv41_supervisor.node import NodeAgent
from dsv41_supervisor.settings import parse
from dsv41_supervisor.units.process import ProcessUnits, UnitDefinition

from tests.unit.fleets import with_value


def _no_unit(name: str) -> UnitDefinition:
    raise AssertionError(f"{name} was started")


async def test_a_fleet_that_fails_while_it_is_measured_shows_no_process_from_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = parse(json.dumps(with_value("supervisor.state_dir", str(tmp_path))))
    agent = NodeAgent(settings, "spark1", ProcessUnits(_no_unit, tmp_path))
    controller = FleetController(settings, agent, "a-key-of-the-fleet-0123456789abcdef")
    looks: list[FleetState] = []

    async def measure() -> dict[str, int]:
        looks.append(controller.state)
        if controller.state is FleetState.FAILED:
            return {"n_processes": 0}
        controller.state = FleetState.FAILED  # the boot fails, and every rank is stopped, before this is told
        return {"n_processes": 1}

    controller.state = FleetState.STARTING
    monkeypatch.setattr(controller.members["spark1"], "measure", measure)
    status = await controller.status()
    assert status["state"] == "failed" and status["nodes"]["spark1"]["measured"] == {"n_processes": 0}
    assert looks == [FleetState.STARTING, FleetState.FAILED]
    await controller.crew.close()
    await agent.close()
