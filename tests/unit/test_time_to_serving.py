"""What a client is told to wait while the fleet is away: all of the next boot, not what the last one left."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from dsv41_supervisor.fleet.controller import FleetController
from dsv41_supervisor.fleet.orders import FleetState
from dsv41_supervisor.node import NodeAgent
from dsv41_supervisor.settings import parse
from dsv41_supervisor.units.process import ProcessUnits, UnitDefinition

from tests.unit.fleets import with_value


def _no_unit(name: str) -> UnitDefinition:
    raise AssertionError(f"{name} was started")


async def test_from_the_loss_on_a_whole_boot_is_to_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = with_value("supervisor.state_dir", str(tmp_path)) | {"recovery": {"backoff_s": 300}}
    settings = parse(json.dumps(document))
    agent = NodeAgent(settings, "spark1", ProcessUnits(_no_unit, tmp_path))
    controller = FleetController(settings, agent, "a-key-of-the-fleet-0123456789abcdef")
    crew, stopped = controller.crew, asyncio.Event()

    async def stop_all(why: str, grace_s: float) -> list[str]:
        await stopped.wait()
        return []

    monkeypatch.setattr(
        controller, "crew",
        SimpleNamespace(
            look=lambda: SimpleNamespace(lost=lambda boot: "rank 2 is gone"), other_head=lambda look: None,
            stop_all=stop_all,
        ),
    )  # fmt: skip
    record = controller.record
    record.wanted_up, record.last_boot_s, controller.state = True, 600.0, FleetState.SERVING
    controller.boot_began_s = time.monotonic() - 100_000.0  # it has served for a day
    recovering = asyncio.ensure_future(controller._serve())
    async with asyncio.timeout(10):
        while controller.state is not FleetState.RECOVERING:
            await asyncio.sleep(0.01)
    assert controller.shown._retry_after_s() == 600.0
    stopped.set()
    async with asyncio.timeout(10):
        while not record.recoveries:
            await asyncio.sleep(0.01)
    assert 800.0 < controller.shown._retry_after_s() <= 900.0
    recovering.cancel()
    await asyncio.gather(recovering, return_exceptions=True)
    await crew.close()
    await agent.close()
