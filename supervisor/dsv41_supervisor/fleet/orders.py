"""What may be asked of the fleet: up, down, drain, pause, resume. Writes down what is wanted; `controller.py` does it.

An order that is only worth something over a restart is on disk or refused. To stop is never refused.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

from ..changes import Changes
from ..checks import unknown_ids
from ..errors import Dsv41Error, Refusal, Stage
from ..journal import log
from ..settings import Settings
from .desk import Desk
from .record import FleetRecord

WRITE_AGAIN_S = 2.0


class FleetState(StrEnum):
    """What users are told; derived from the ranks and from what was asked for."""

    DOWN = "down"
    STARTING = "starting"
    SERVING = "serving"
    RECOVERING = "recovering"
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"


class FleetOrders:
    """What is wanted and how far it is: the record, the state with its reason. Methods run in one event loop."""

    desk: Desk
    settings: Settings

    def __init__(self, record: FleetRecord) -> None:
        self.changes = Changes()
        self.state = FleetState.DOWN
        self.reason: str | None = None
        self.refusals: tuple[Refusal, ...] = ()
        self.record = record
        self.new_order = asyncio.Event()

    @property
    def unwritten(self) -> str | None:
        """What a restarted supervisor would not know; None while everything is on disk."""
        if (why := self.record.unwritten) is None:
            return None
        wanted = "up" if self.record.wanted_up else "down"
        return (
            f"what was ordered last (wanted: {wanted}) is not on disk: {why}. A restart of the head's supervisor would "
            f"forget it. It is tried again every {WRITE_AGAIN_S:g} s: free some space "
            f"(df -h {self.record.directory}), or see who may write there."
        )

    def up(self, by: str, override: tuple[str, ...] = ()) -> str:
        """Ask for the fleet to serve. Changes nothing when it already does; a drain is finished first. Returns one
        sentence.

        `override` names checks whose refusal does not stop this boot and its recoveries. Raises Dsv41Error for a name
        that no check has, and for one that comes too late for the boot under way.
        """
        if unknown := unknown_ids(override):
            raise Dsv41Error(
                f"no check is called {', '.join(unknown)}.", stage=Stage.CONFIG,
                hint="Run dsv41 doctor --list: it shows every check with its id.",
            )  # fmt: skip
        record = self.record
        if record.wanted_up and self.state in (FleetState.SERVING, FleetState.STARTING, FleetState.RECOVERING):
            self._refuse_late(override)
            return f"the fleet is already {self.state}; nothing was changed"
        with record.kept("up is refused"):
            record.wanted_up, record.override, record.recoveries = True, tuple(override), []
            record.served, record.held, record.held_until = False, None, None
        allowed = f", overriding {', '.join(override)}" if override else ""
        record.decide(f"up was asked for by {by}{allowed}")
        self.refusals = ()
        if self.state is FleetState.DRAINING:
            # Ranks that drain take no request any more, and starting stops them: what they still answer goes first.
            self.changes.bump()
            return "the drain that runs is finished first, then it starts"
        if self.state is FleetState.FAILED:
            self.set_state(FleetState.DOWN, None)
        self._ordered()
        return "starting"

    def down(self, by: str) -> str:
        """Ask for everything to stop now, a drain that runs included. Done whether it can be written down or not:
        `status` has what is not on disk."""
        if not self.record.wanted_up and self.state is FleetState.DOWN:
            return "the fleet is already down; nothing was changed"
        self.record.decide(f"down was asked for by {by}")
        self.record.held = self.record.held_until = None
        if self.state in (FleetState.FAILED, FleetState.DRAINING):
            # Whatever failed, every node is stopped and looked at again; whatever still ran is waited for no longer.
            self.set_state(FleetState.STOPPING, "stopping")
        self._unwanted()
        return "stopping"

    def drain(self, by: str) -> str:
        """Take no new requests, let the running ones finish, then stop. Takes back an up that waits for a drain."""
        if self.state is FleetState.DRAINING:
            self.record.decide(f"drain was asked for by {by}")
            self.record.wanted_up = False
            self.record.save()
            self.changes.bump()
            return "draining"
        if self.state is not FleetState.SERVING:
            return self.down(by)
        self.record.decide(f"drain was asked for by {by}")
        self.set_state(FleetState.DRAINING, "draining")
        self._unwanted()
        return "draining"

    def pause(self, by: str) -> str:
        """Start no recovery until resumed, over restarts as well. What serves goes on; `up` still starts the fleet."""
        if self.record.paused_by is not None:
            return f"recovery is already paused by {self.record.paused_by}; nothing was changed"
        with self.record.kept("pause is refused"):
            self.record.paused_by = by
        self.record.decide("recovery is paused", f"asked for by {by}")
        self.desk.tell("paused", f"recovery is paused by {by}")
        if self.state is FleetState.RECOVERING:
            # One that has begun is not waited for.
            self.new_order.set()
        self.changes.bump()
        return "recovery is paused"

    def resume(self, by: str) -> str:
        """Recover by itself again; what the pause held back begins now."""
        if self.record.paused_by is None:
            return "recovery is not paused; nothing was changed"
        record = self.record
        held, why = record.held_until == "resume", record.held
        with record.kept("resume is refused"):
            record.paused_by = None
            if held:
                record.held = record.held_until = None
        record.decide("recovery is resumed", f"asked for by {by}")
        self.desk.tell("resumed", f"recovery is resumed by {by}")
        if held:
            self.set_state(FleetState.RECOVERING, why)
            self.new_order.set()
        self.changes.bump()
        return "recovery is resumed"

    async def write_again(self) -> None:
        """What could not be written is tried again until it is, or until cancelled."""
        while True:
            await asyncio.sleep(WRITE_AGAIN_S)
            if self.record.unwritten is not None:
                self.record.save()
                if self.record.unwritten is None:
                    self.changes.bump()

    def set_state(self, state: FleetState, reason: str | None) -> None:
        if state is not self.state or reason != self.reason:
            log.info("fleet: %s -> %s%s", self.state, state, f": {reason}" if reason else "")
        self.state, self.reason = state, reason
        self.changes.bump()

    def _refuse_late(self, override: tuple[str, ...]) -> None:
        """Each boot begins with its overrides; whoever asks for another one would believe that it holds."""
        in_force = {*self.record.override, *self.settings.checks.override}
        if late := [name for name in override if name not in in_force]:
            named = " ".join(f"--override {name}" for name in late)
            boot = f"boot {self.record.boot.id}" if self.record.boot is not None else "the start under way"
            raise Dsv41Error(
                f"{named} was not taken: {boot} began without it, and the fleet is {self.state}.",
                stage=Stage.CONFIG, hint="Run dsv41 down first.",
            )  # fmt: skip

    def _unwanted(self) -> None:
        self.record.wanted_up = False
        self.record.save()
        self._ordered()

    def _ordered(self) -> None:
        self.new_order.set()
        self.changes.bump()
