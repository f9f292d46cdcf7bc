"""Up, down and back again: the one owner of the fleet's boot. Runs in the head's supervisor.

Does what `orders.py` was asked for: `boot.py` brings it up in order, `crew.py` stops it and looks that
everything is gone, `recovery.py` says what follows after a loss, `adopt.py` keeps a healthy boot over a restart, and
`shown.py` says how it stands.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ..deadline import Deadline
from ..errors import Dsv41Error, Stage
from ..fabric.check import FabricReport
from ..journal import Event, event, log
from ..node import NodeAgent
from ..settings import Settings
from .adopt import adopt
from .boot import boot_in_order
from .crew import LOST_GRACE_S, Crew, two_heads
from .decisions import Decisions
from .desk import Desk
from .members import Member
from .orders import FleetOrders, FleetState
from .record import FleetRecord, now_s
from .recovery import Again, Stay, after_a_failed_boot, after_a_loss
from .shown import FleetShown

STALE_COUNT_S = 5.0
SERVE_LOOK_S = 2.0


def _within(left_s: float) -> str:
    return f"in {left_s:.0f} s at the latest" if left_s > 0 else "which has run out"


class FleetController(FleetOrders):
    """See the module's docstring. All methods run in one event loop."""

    def __init__(self, settings: Settings, agent: NodeAgent, key: str) -> None:
        super().__init__(FleetRecord.load(settings.state_dir(agent.node)))
        self.settings = settings
        self.decisions = Decisions(settings.state_dir(agent.node))
        self._agent = agent
        self.crew = Crew(settings, agent, key, self.changes, self.record)
        self.fabric: FabricReport | None = None
        self.boot_began_s: float | None = 0.0
        """Of the boot under way, or of the next one if a pause is before it; None while neither is known, and
        a whole boot is ahead. At first long ago: a boot that may be adopted serves in a moment."""
        self.shown = FleetShown(self)
        self.desk = Desk(settings, agent.node, self.members, self.shown.about)

    @property
    def members(self) -> dict[str, Member]:
        return self.crew.members

    def readiness(self) -> dict[str, Any]:
        return self.shown.readiness()

    async def status(self) -> dict[str, Any]:
        return await self.shown.status()

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Drive the fleet until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.crew.watch())
            group.create_task(self.desk.run(pick_up=True))
            group.create_task(self._drive())
            group.create_task(self.write_again())

    async def close(self) -> None:
        await self.crew.close()

    async def _drive(self) -> None:
        record = self.record
        if record.boot is not None:
            await self._or_new_order(self._adopt)
        if record.wanted_up and record.held is not None:
            # It was given up, or paused, before this supervisor was started: that is no new reason to try.
            self.set_state(FleetState.FAILED, record.held)
        elif record.wanted_up and record.served and self.state is FleetState.DOWN:
            self.set_state(FleetState.RECOVERING, "the head's supervisor was restarted")
        while True:
            # A drain goes on although it is wanted up again: the start comes after it.
            if not record.wanted_up or self.state is FleetState.DRAINING:
                if self.state not in (FleetState.DOWN, FleetState.FAILED):
                    await self._or_new_order(self._bring_down)
                if not record.wanted_up:
                    await self._next_order()
            elif self.state is FleetState.SERVING:
                await self._or_new_order(self._serve)
            elif self.state is FleetState.FAILED:
                await self._next_order()
            elif self.state is FleetState.RECOVERING and record.paused_by is not None:
                await self._or_new_order(self._held_by_pause)
            else:
                await self._or_new_order(self._start)

    async def _start(self) -> None:
        """One boot, from checks to serving; on failure everything is stopped and it is decided what comes next."""
        recovering = self.state is FleetState.RECOVERING
        self.boot_began_s = None
        if not recovering:
            self.set_state(FleetState.STARTING, None)
        reported: list[FabricReport] = []
        try:
            await self._all_heard(recovering)
            self.boot_began_s = began_s = time.monotonic()
            await boot_in_order(self.crew, reported)
        except Dsv41Error as error:
            await self._failed_boot(error, recovering)
            return
        finally:
            self.fabric = reported[-1] if reported else self.fabric
        record = self.record
        record.last_boot_s = time.monotonic() - began_s
        record.served = True
        record.save()
        self.refusals = ()
        self.set_state(FleetState.SERVING, None)
        assert record.boot is not None
        sentence = f"boot {record.boot.id} serves after {record.last_boot_s:.1f} s"
        event(Event.FLEET_SERVING, sentence, stage=Stage.ENGINE)
        if recovering:
            self.desk.tell("recovered", f"boot {record.boot.id} serves again")

    async def _all_heard(self, recovering: bool) -> None:
        """Every supervisor answers. A fleet that comes back waits as long as it takes: a box that was switched off is
        no failed boot. A person who said `up` is told at once."""
        if not recovering:
            await self.crew.all_heard()
            return
        why = self.reason or "recovering"
        try:
            await self.crew.all_heard()
        except Dsv41Error:
            silent = ", ".join(self.crew.silent)
            self.desk.tell("lost", f"{why}; waiting for the supervisor of {silent}", node=silent)
            self.record.decide(f"waiting for {silent} before anything is started", why)
            self.set_state(FleetState.RECOVERING, f"{why}; waiting for the supervisor of {silent}")
            await self.crew.all_heard(wait_s=None)
            self.set_state(FleetState.RECOVERING, why)

    async def _serve(self) -> None:
        """Watch until a rank is lost."""
        while True:
            seen = self.changes.version
            if self.new_order.is_set():
                # The same change may bring an order and the rank that it stops: that one is not lost.
                return
            look = self.crew.look()
            if (other := self.crew.other_head(look)) is not None:
                await self._stand_back(other)
                return
            lost = look.lost(self.record.boot.id if self.record.boot else None)
            if lost is not None:
                break
            # Whatever ends a fleet is a change: a status that comes, or one that has not come for too long.
            await self.changes.newer_than(seen, SERVE_LOOK_S)
        self.record.note(f"lost: {lost}")
        event(Event.RANK_LOST, lost, logging.ERROR, stage=Stage.ENGINE)
        self.boot_began_s = None
        self.set_state(FleetState.RECOVERING, lost)
        self.desk.tell("lost", lost, incident=True)
        await self._recover(lost)

    async def _recover(self, why: str) -> None:
        """Stop all, look that all is gone, pause; the next turn of the loop starts again. Or stay down."""
        try:
            await self.crew.stop_all(why, LOST_GRACE_S)
        except Dsv41Error as error:
            # Nothing may be started beside what is left; a person has to look.
            self.refusals = error.refusals
            await self._give_up(f"after {why}, not everything could be stopped: {error}")
            return
        record = self.record
        record.note("all ranks stopped")
        paused = record.paused_by is not None
        await self._do(after_a_loss(why, record.recoveries, now_s(), paused, self.settings.recovery), why)

    async def _do(self, decision: Again | Stay, why: str) -> None:
        record, limit = self.record, self.settings.recovery.max_recoveries
        if isinstance(decision, Stay):
            await self._give_up(decision.why, decision.until)
            return
        record.recoveries = list(decision.recoveries)
        record.save()
        record.decide(f"recovery {decision.number} of {limit} in {decision.pause_s:.0f} s", why)
        event(Event.RECOVERY_STARTED, f"recovering: {why}", logging.WARNING, stage=Stage.RANK)
        self.boot_began_s = time.monotonic() + decision.pause_s
        await asyncio.sleep(decision.pause_s)

    async def _held_by_pause(self) -> None:
        await self._recover(self.reason or "the fleet was lost")

    async def _give_up(self, sentence: str, until: str = "up") -> None:
        """Stay down, tell a person, and write down why."""
        event(Event.RECOVERY_GIVEN_UP, sentence, logging.ERROR, stage=Stage.RANK)
        self.desk.tell("paused" if until == "resume" else "gave-up", sentence, incident=True)
        self.record.decide(f"staying down until {until}", sentence)
        self.record.held, self.record.held_until = sentence, until
        self.record.save()
        self.set_state(FleetState.FAILED, sentence)

    async def _stand_back(self, other: str) -> None:
        """Two heads must not fight over the nodes: the older one lets go of everything and waits for a person."""
        self.refusals = (two_heads(other),)
        self.crew.sequence = self.crew.sequence.close()
        self.record.boot = None
        await self._give_up(f"{other}; this head stands back")

    async def _failed_boot(self, error: Dsv41Error, recovering: bool) -> None:
        self.refusals = error.refusals
        self.boot_began_s = None
        why = str(error)
        self.record.note(f"boot failed: {why.splitlines()[0]}")
        log.error("the boot failed:\n%s", why)
        self.desk.tell("boot-failed", why, incident=True)
        try:
            await self.crew.stop_all("the boot failed", LOST_GRACE_S)
        except Dsv41Error as left:
            self.refusals = tuple(dict.fromkeys((*self.refusals, *left.refusals)))
        record = self.record
        decision = after_a_failed_boot(
            why, recovering, all(r.transient for r in self.refusals), record.recoveries, now_s(),
            record.paused_by is not None, self.settings.recovery,
        )  # fmt: skip
        if isinstance(decision, Again) or decision.until == "resume":
            await self._do(decision, why)
            return
        if recovering:
            await self._give_up(decision.why)
            return
        record.decide("the boot failed and is not tried again", why)
        record.wanted_up = False
        record.save()
        self.set_state(FleetState.FAILED, why)

    async def _bring_down(self) -> None:
        if self.state is FleetState.DRAINING:
            await self.members[self.settings.fleet.head].drain()
            await self._drained()
        self.set_state(FleetState.STOPPING, "stopping")
        try:
            unseen = await self.crew.stop_all("down was asked for", self.settings.recovery.stop_timeout_s)
        except Dsv41Error as error:
            self.refusals = error.refusals
            self.set_state(FleetState.FAILED, str(error))
            return
        self.refusals = ()
        self.set_state(FleetState.DOWN, None)
        # A node that is out of reach stops its rank when its lease ends; whether it did is not known here.
        but = ""
        if unseen:
            left_s = max(self.members[name].lease_left_s for name in unseen)
            but = f", but {', '.join(unseen)} could not be asked; a rank there ends with its lease, {_within(left_s)}"
        event(Event.FLEET_STOPPED, f"every rank is gone{but}", stage=Stage.RANK)

    async def _drained(self) -> None:
        """Wait for running requests, within the limit. A count that stands still while no token moves is an old one."""
        deadline = Deadline.after(self.settings.recovery.stop_timeout_s, "running requests to finish")
        probe = self._agent.probe
        before, moved_at_s = None, time.monotonic()
        while not deadline.expired:
            load = await probe.load()
            if load is None or load.n_running + load.n_queued == 0:
                return
            if before is None or load.moved(before):
                before, moved_at_s = load, time.monotonic()
            elif time.monotonic() - moved_at_s > STALE_COUNT_S:
                return
            await asyncio.sleep(0.25)

    async def _adopt(self) -> None:
        """After a restart of this supervisor: keep what is healthy and the same, else start cleanly."""
        boot = self.record.boot
        assert boot is not None
        self.set_state(FleetState.STARTING, "looking whether the ranks of the boot before still serve")
        why_not = await adopt(self.crew, boot)
        # It may have found a newer one of its own.
        boot = self.record.boot or boot
        if why_not is None:
            self.record.served = True
            self.record.save()
            self.record.decide(f"adopted boot {boot.id}", "every rank is ready and the same")
            event(Event.FLEET_ADOPTED, f"adopted boot {boot.id}", stage=Stage.RANK)
            self.set_state(FleetState.SERVING, None)
            return
        self.boot_began_s = None
        self.record.decide(f"boot {boot.id} cannot be adopted; stopping what is left of it", why_not)
        try:
            # Whoever starts a rank by hand meanwhile waits for the next boot, and is no part of this one.
            await self.crew.stop_all("the boot before cannot be adopted", LOST_GRACE_S, keep_waiting=True)
        except Dsv41Error as error:
            log.warning("%s", error)
        self.set_state(FleetState.DOWN, None)

    # -- pieces ------------------------------------------------------------------------------------------------------

    async def _or_new_order(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` until it ends or someone asks for something else."""
        self.new_order.clear()
        task = asyncio.ensure_future(work())
        ordered = asyncio.ensure_future(self.new_order.wait())
        try:
            await asyncio.wait({task, ordered}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ordered.cancel()
            if not task.done():
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            log.error("the fleet's loop failed; stopping the fleet", exc_info=failure)
            self.record.wanted_up = False
            try:
                await self.crew.stop_all("the head's loop failed", LOST_GRACE_S)
            except Dsv41Error as left:
                self.refusals = left.refusals
            self.record.save()
            await self._give_up(f"a bug: {failure!r}")

    async def _next_order(self) -> None:
        await self.new_order.wait()
        self.new_order.clear()
