"""An order and what it does to the ranks may be seen in one moment: the order decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio
from dsv41_supervisor.errors import Dsv41Error, Exit
from dsv41_supervisor.fleet.controller import FleetController
from dsv41_supervisor.fleet.orders import FleetState
from dsv41_supervisor.node import NodeAgent
from dsv41_supervisor.rank.plan import Boot
from dsv41_supervisor.settings import parse
from dsv41_supervisor.units.process import ProcessUnits, UnitDefinition

from tests.unit.fleets import with_value


def _no_unit(name: str) -> UnitDefinition:
    raise AssertionError(f"{name} was started")


async def test_a_rank_that_an_order_stops_is_not_a_lost_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = parse(json.dumps(with_value("supervisor.state_dir", str(tmp_path))))
    agent = NodeAgent(settings, "spark1", ProcessUnits(_no_unit, tmp_path))
    controller = FleetController(settings, agent, "a-key-of-the-fleet-0123456789abcdef")
    crew = controller.crew
    lost: list[str] = []
    monkeypatch.setattr(
        controller, "crew",
        SimpleNamespace(
            look=lambda: SimpleNamespace(lost=lambda boot: lost[0] if lost else None), other_head=lambda look: None
        ),
    )  # fmt: skip
    controller.record.wanted_up, controller.state = True, FleetState.SERVING
    serving = asyncio.ensure_future(controller._or_new_order(controller._serve))
    for _ in range(5):
        await asyncio.sleep(0)
    controller.down("systemctl stop dsv41-rank@0")
    lost.append("rank 0 on spark1 is stopped")
    controller.changes.bump()
    await asyncio.wait_for(serving, 10)
    assert controller.state is FleetState.SERVING, "the stop that was asked for was taken for a loss"
    assert not [entry for entry in controller.record.timeline if "lost" in entry["what"]]
    await crew.close()
    await agent.close()


class Draining:
    """A controller whose fleet drains with one running request, and what it does to the fleet, in order."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = parse(json.dumps(with_value("supervisor.state_dir", str(tmp_path))))
        self.agent = NodeAgent(settings, "spark1", ProcessUnits(_no_unit, tmp_path))
        self.controller = FleetController(settings, self.agent, "a-key-of-the-fleet-0123456789abcdef")
        self.happened: list[str] = []
        self.n_running = 1
        self._crew = self.controller.crew
        self._looked = asyncio.Event()
        monkeypatch.setattr(
            self.controller, "crew", SimpleNamespace(
                look=lambda: SimpleNamespace(lost=lambda boot: None), other_head=lambda look: None,
                stop_all=self._stop_all, members={settings.fleet.head: SimpleNamespace(drain=self._drain)},
            ),
        )  # fmt: skip
        monkeypatch.setattr(self.controller, "_start", self._start)
        monkeypatch.setattr(self.agent.probe, "load", self._load)

    async def begin(self) -> None:
        self.controller.record.wanted_up, self.controller.state = True, FleetState.SERVING
        self._driving = asyncio.ensure_future(self.controller._drive())
        assert self.controller.drain("one") == "draining"
        await self.looked_again()

    async def looked_again(self) -> None:
        """The running requests were counted once more, so an order in between was acted upon."""
        for _ in range(2):
            self._looked.clear()
            await asyncio.wait_for(self._looked.wait(), 10)

    async def until(self, *happened: str) -> None:
        async with asyncio.timeout(10):
            while tuple(self.happened) != happened:
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        self._driving.cancel()
        await asyncio.gather(self._driving, return_exceptions=True)
        await self._crew.close()
        await self.agent.close()

    async def _load(self) -> SimpleNamespace:
        self._looked.set()
        # Tokens move at every look.
        return SimpleNamespace(n_running=self.n_running, n_queued=0, moved=lambda before: True)

    async def _drain(self) -> None:
        self.happened.append("drain")

    async def _stop_all(self, why: str, grace_s: float) -> list[str]:
        self.happened.append("stop")
        return []

    async def _start(self) -> None:
        self.happened.append("start")
        await asyncio.Event().wait()


@pytest_asyncio.fixture
async def draining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Draining]:
    made = Draining(tmp_path, monkeypatch)
    await made.begin()
    yield made
    await made.close()


async def test_up_during_a_drain_waits_until_the_running_requests_are_done(draining: Draining) -> None:
    # The second up is remembered as the first one is.
    for by in ("two", "three"):
        assert draining.controller.up(by) == "the drain that runs is finished first, then it starts"
    await draining.looked_again()
    assert draining.happened == ["drain"], "the running stream was cut off"
    assert draining.controller.state is FleetState.DRAINING
    draining.n_running = 0
    await draining.until("drain", "stop", "start")


async def test_a_second_drain_cuts_nothing_off_and_takes_back_an_up(draining: Draining) -> None:
    draining.controller.up("two")
    assert draining.controller.drain("three") == "draining"
    await draining.looked_again()
    assert draining.happened == ["drain"], "the running stream was cut off, or the drain began anew"
    draining.n_running = 0
    await draining.until("drain", "stop")
    async with asyncio.timeout(10):
        while draining.controller.state is not FleetState.DOWN:
            await asyncio.sleep(0.01)
    assert not draining.controller.record.wanted_up


async def test_down_during_a_drain_ends_it_now(draining: Draining) -> None:
    assert draining.controller.down("two") == "stopping"
    await draining.until("drain", "stop")


@pytest.mark.parametrize("state", [FleetState.SERVING, FleetState.STARTING, FleetState.RECOVERING])
async def test_an_override_that_comes_too_late_is_refused_with_the_boot_that_began_without_it(
    tmp_path: Path, state: FleetState
) -> None:
    raw = with_value("supervisor.state_dir", str(tmp_path))
    raw["checks"] = {"override": ["rail-route"]}
    settings = parse(json.dumps(raw))
    agent = NodeAgent(settings, "spark1", ProcessUnits(_no_unit, tmp_path))
    controller = FleetController(settings, agent, "a-key-of-the-fleet-0123456789abcdef")
    assert controller.up("one", ("rail-mac",)) == "starting"
    controller.state = state
    with pytest.raises(Dsv41Error, match="--override rail-mtu was not taken: the start under way began without it"):
        controller.up("two", ("rail-mtu",))
    controller.record.boot = Boot("b7", 7, 41000)
    with pytest.raises(Dsv41Error) as refused:
        controller.up("two", ("rail-mac", "rail-mtu"))
    assert str(refused.value) == (
        f"config: --override rail-mtu was not taken: boot b7 began without it, and the fleet is {state}. "
        "Run dsv41 down first."
    )
    assert refused.value.exit_status is Exit.REFUSED
    assert controller.record.override == ("rail-mac",)
    # What holds already, for this boot or by the settings, is no reason to refuse.
    for override in ((), ("rail-mac",), ("rail-route", "rail-mac")):
        assert controller.up("two", override) == f"the fleet is already {state}; nothing was changed"
    await controller.close()
    await agent.close()
