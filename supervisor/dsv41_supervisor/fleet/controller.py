"""Up, down and back again: the one owner of the fleet's boot. Runs in the head's supervisor.

Takes orders, keeps the fleet's state, and drives: `boot.py` brings it up in order, `crew.py` stops it and looks that
everything is gone, `recovery.py` says what follows after a loss, `adopt.py` keeps a healthy boot over a restart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

from ..changes import Changes
from ..checks import unknown_ids
from ..deadline import Deadline
from ..errors import Dsv41Error, Refusal, Stage
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
from .record import FleetRecord, now_s
from .recovery import Again, Stay, after_a_failed_boot, after_a_loss

STALE_COUNT_S = 5.0
SERVE_LOOK_S = 2.0
WRITE_AGAIN_S = 2.0
MEASURE_SILENT_S = 1.0


class FleetState(StrEnum):
    """What users are told; derived from the ranks and from what was asked for."""

    DOWN = "down"
    STARTING = "starting"
    SERVING = "serving"
    RECOVERING = "recovering"
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"


def _unreachable(member: Member) -> dict[str, Any]:
    return {
        "node": member.name, "unreachable_s": round(member.silent_s, 1), "trouble": member.trouble,
        "lease_left_s": round(member.lease_left_s, 1),
    }  # fmt: skip


def _within(left_s: float) -> str:
    return f"in {left_s:.0f} s at the latest" if left_s > 0 else "which has run out"


class FleetController:
    """See the module's docstring. All methods run in one event loop."""

    def __init__(self, settings: Settings, agent: NodeAgent, key: str) -> None:
        self.settings = settings
        self.changes = Changes()
        self.state = FleetState.DOWN
        self.reason: str | None = None
        self.refusals: tuple[Refusal, ...] = ()
        self.decisions = Decisions(settings.state_dir(agent.node))
        self._agent = agent
        self._record = FleetRecord.load(settings.state_dir(agent.node))
        self._crew = Crew(settings, agent, key, self.changes, self._record)
        self.fabric: FabricReport | None = None
        self._order = asyncio.Event()
        self._boot_began_s = 0.0
        self.desk = Desk(settings, agent.node, self.members, self._about)

    @property
    def members(self) -> dict[str, Member]:
        return self._crew.members

    @property
    def unwritten(self) -> str | None:
        """What a restarted supervisor would not know; None while everything is on disk."""
        if (why := self._record.unwritten) is None:
            return None
        wanted = "up" if self._record.wanted_up else "down"
        return (
            f"what was ordered last (wanted: {wanted}) is not on disk: {why}. A restart of the head's supervisor would "
            f"forget it. It is tried again every {WRITE_AGAIN_S:g} s: free some space "
            f"(df -h {self._record.directory}), or see who may write there."
        )

    # -- what others ask ---------------------------------------------------------------------------------------------

    def up(self, by: str, override: tuple[str, ...] = ()) -> str:
        """Ask for the fleet to serve. Changes nothing when it already does; returns one sentence.

        `override` names checks whose refusal does not stop this boot and its recoveries. Raises Dsv41Error for a name
        that no check has.
        """
        if unknown := unknown_ids(override):
            raise Dsv41Error(
                f"no check is called {', '.join(unknown)}.", stage=Stage.CONFIG,
                hint="Run dsv41 doctor --list: it shows every check with its id.",
            )  # fmt: skip
        record = self._record
        if record.wanted_up and self.state in (FleetState.SERVING, FleetState.STARTING, FleetState.RECOVERING):
            return f"the fleet is already {self.state}; nothing was changed"
        with record.kept("up is refused"):
            record.wanted_up, record.override, record.recoveries = True, tuple(override), []
            record.served, record.held, record.held_until = False, None, None
        allowed = f", overriding {', '.join(override)}" if override else ""
        record.decide(f"up was asked for by {by}{allowed}")
        self.refusals = ()
        if self.state is FleetState.FAILED:
            self._set_state(FleetState.DOWN, None)
        self._ordered()
        return "starting"

    def down(self, by: str) -> str:
        """Ask for everything to stop. Done whether it can be written down or not: `status` has what is not on disk."""
        if not self._record.wanted_up and self.state is FleetState.DOWN:
            return "the fleet is already down; nothing was changed"
        self._record.decide(f"down was asked for by {by}")
        self._record.held = self._record.held_until = None
        if self.state is FleetState.FAILED:
            # Whatever failed, every node is stopped and looked at again.
            self._set_state(FleetState.STOPPING, "stopping")
        self._unwanted()
        return "stopping"

    def drain(self, by: str) -> str:
        """Take no new requests, let the running ones finish, then stop."""
        if self.state is not FleetState.SERVING:
            return self.down(by)
        self._record.decide(f"drain was asked for by {by}")
        self._set_state(FleetState.DRAINING, "draining")
        self._unwanted()
        return "draining"

    def pause(self, by: str) -> str:
        """Start no recovery until resumed, over restarts as well. What serves goes on; `up` still starts the fleet."""
        if self._record.paused_by is not None:
            return f"recovery is already paused by {self._record.paused_by}; nothing was changed"
        with self._record.kept("pause is refused"):
            self._record.paused_by = by
        self._record.decide("recovery is paused", f"asked for by {by}")
        self.desk.tell("paused", f"recovery is paused by {by}")
        if self.state is FleetState.RECOVERING:
            # One that has begun is not waited for.
            self._order.set()
        self.changes.bump()
        return "recovery is paused"

    def resume(self, by: str) -> str:
        """Recover by itself again; what the pause held back begins now."""
        if self._record.paused_by is None:
            return "recovery is not paused; nothing was changed"
        record = self._record
        held, why = record.held_until == "resume", record.held
        with record.kept("resume is refused"):
            record.paused_by = None
            if held:
                record.held = record.held_until = None
        record.decide("recovery is resumed", f"asked for by {by}")
        self.desk.tell("resumed", f"recovery is resumed by {by}")
        if held:
            self._set_state(FleetState.RECOVERING, why)
            self._order.set()
        self.changes.bump()
        return "recovery is resumed"

    def readiness(self) -> dict[str, Any]:
        """What the gateway is handed."""
        serving = self.state is FleetState.SERVING
        port = self.settings.fleet.nodes[self.settings.fleet.head].engine_port
        return {
            "version": self.changes.version,
            "ready": serving,
            "reason": None if serving else self.reason or f"the fleet is {self.state}",
            "state": str(self.state),
            "boot": self._record.boot.id if self._record.boot else None,
            "upstream": f"http://127.0.0.1:{port}",
            "served_model_name": self.settings.engine.served_model_name,
            "retry_after_s": self._retry_after_s(),
            "detail": self._detail(),
        }

    def _detail(self) -> str:
        detail = self._crew.look().detail()
        if not self._crew.awaited:
            return detail
        return f"waiting until the rank is gone on {', '.join(sorted(self._crew.awaited))}; {detail}"

    async def status(self) -> dict[str, Any]:
        """The whole fleet, for `dsv41 status`."""

        async def measured(member: Member) -> dict[str, Any]:
            """Not longer than the node is heard of: a frozen one would hold up everybody who asks."""
            asking = asyncio.ensure_future(member.measure())
            try:
                while not asking.done() and member.silent_s < MEASURE_SILENT_S:
                    await asyncio.wait({asking}, timeout=0.1)
                return asking.result() if asking.done() else {}
            except Dsv41Error:
                return {}
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

        figures = await asyncio.gather(*(measured(m) for m in self.members.values()))
        return {
            "fleet": self.settings.fleet.name,
            "state": str(self.state),
            "reason": self.reason,
            "refusals": [r.to_json() for r in self.refusals],
            "boot": self._record.boot.to_json() if self._record.boot else None,
            "wanted": "up" if self._record.wanted_up else "down",
            "recoveries": len(self._record.recoveries),
            "paused_by": self._record.paused_by,
            "unwritten": self.unwritten,
            "override": sorted({*self._record.override, *self.settings.checks.override}),
            "findings": [f.to_json() for f in self.fabric.told] if self.fabric is not None else [],
            "readiness": self.readiness(),
            "timeline": self._record.timeline[-60:],
            "desk": self.desk.status(),
            "nodes": {
                name: (member.status or _unreachable(member)) | {"measured": m}
                for (name, member), m in zip(self.members.items(), figures, strict=True)
            },
        }

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Drive the fleet until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._crew.watch())
            group.create_task(self.desk.run(pick_up=True))
            group.create_task(self._drive())
            group.create_task(self._write_again())

    def _about(self) -> dict[str, Any]:
        """What a bundle says about the fleet."""
        record = self._record
        return {
            "boot": record.boot.to_json() if record.boot else None,
            "state": str(self.state), "reason": self.reason, "refusals": [r.to_json() for r in self.refusals],
            "wanted": "up" if record.wanted_up else "down", "recoveries": list(record.recoveries),
            "last_boot_s": record.last_boot_s, "timeline": list(record.timeline),
        }  # fmt: skip

    async def close(self) -> None:
        await self._crew.close()

    async def _drive(self) -> None:
        record = self._record
        if record.boot is not None:
            await self._or_new_order(self._adopt)
        if record.wanted_up and record.held is not None:
            # It was given up, or paused, before this supervisor was started: that is no new reason to try.
            self._set_state(FleetState.FAILED, record.held)
        elif record.wanted_up and record.served and self.state is FleetState.DOWN:
            self._set_state(FleetState.RECOVERING, "the head's supervisor was restarted")
        while True:
            if not record.wanted_up:
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
        if not recovering:
            self._set_state(FleetState.STARTING, None)
        reported: list[FabricReport] = []
        try:
            await self._all_heard(recovering)
            self._boot_began_s = time.monotonic()
            await boot_in_order(self._crew, reported)
        except Dsv41Error as error:
            await self._failed_boot(error, recovering)
            return
        finally:
            self.fabric = reported[-1] if reported else self.fabric
        record = self._record
        record.last_boot_s = time.monotonic() - self._boot_began_s
        record.served = True
        record.save()
        self.refusals = ()
        self._set_state(FleetState.SERVING, None)
        assert record.boot is not None
        sentence = f"boot {record.boot.id} serves after {record.last_boot_s:.1f} s"
        event(Event.FLEET_SERVING, sentence, stage=Stage.ENGINE)
        if recovering:
            self.desk.tell("recovered", f"boot {record.boot.id} serves again")

    async def _all_heard(self, recovering: bool) -> None:
        """Every supervisor answers. A fleet that comes back waits as long as it takes: a box that was switched off is
        no failed boot. A person who said `up` is told at once."""
        if not recovering:
            await self._crew.all_heard()
            return
        why = self.reason or "recovering"
        try:
            await self._crew.all_heard()
        except Dsv41Error:
            silent = ", ".join(self._crew.silent)
            self.desk.tell("lost", f"{why}; waiting for the supervisor of {silent}", node=silent)
            self._record.decide(f"waiting for {silent} before anything is started", why)
            self._set_state(FleetState.RECOVERING, f"{why}; waiting for the supervisor of {silent}")
            await self._crew.all_heard(wait_s=None)
            self._set_state(FleetState.RECOVERING, why)

    async def _serve(self) -> None:
        """Watch until a rank is lost."""
        while True:
            seen = self.changes.version
            if self._order.is_set():
                # The same change may bring an order and the rank that it stops: that one is not lost.
                return
            look = self._crew.look()
            if (other := self._crew.other_head(look)) is not None:
                await self._stand_back(other)
                return
            lost = look.lost(self._record.boot.id if self._record.boot else None)
            if lost is not None:
                break
            # Whatever ends a fleet is a change: a status that comes, or one that has not come for too long.
            await self.changes.newer_than(seen, SERVE_LOOK_S)
        self._record.note(f"lost: {lost}")
        event(Event.RANK_LOST, lost, logging.ERROR, stage=Stage.ENGINE)
        self._set_state(FleetState.RECOVERING, lost)
        self.desk.tell("lost", lost, incident=True)
        await self._recover(lost)

    async def _recover(self, why: str) -> None:
        """Stop all, look that all is gone, pause; the next turn of the loop starts again. Or stay down."""
        try:
            await self._crew.stop_all(why, LOST_GRACE_S)
        except Dsv41Error as error:
            # Nothing may be started beside what is left; a person has to look.
            self.refusals = error.refusals
            await self._give_up(f"after {why}, not everything could be stopped: {error}")
            return
        record = self._record
        record.note("all ranks stopped")
        paused = record.paused_by is not None
        await self._do(after_a_loss(why, record.recoveries, now_s(), paused, self.settings.recovery), why)

    async def _do(self, decision: Again | Stay, why: str) -> None:
        record, limit = self._record, self.settings.recovery.max_recoveries
        if isinstance(decision, Stay):
            await self._give_up(decision.why, decision.until)
            return
        record.recoveries = list(decision.recoveries)
        record.save()
        record.decide(f"recovery {decision.number} of {limit} in {decision.pause_s:.0f} s", why)
        event(Event.RECOVERY_STARTED, f"recovering: {why}", logging.WARNING, stage=Stage.RANK)
        await asyncio.sleep(decision.pause_s)

    async def _held_by_pause(self) -> None:
        await self._recover(self.reason or "the fleet was lost")

    async def _give_up(self, sentence: str, until: str = "up") -> None:
        """Stay down, tell a person, and write down why."""
        event(Event.RECOVERY_GIVEN_UP, sentence, logging.ERROR, stage=Stage.RANK)
        self.desk.tell("paused" if until == "resume" else "gave-up", sentence, incident=True)
        self._record.decide(f"staying down until {until}", sentence)
        self._record.held, self._record.held_until = sentence, until
        self._record.save()
        self._set_state(FleetState.FAILED, sentence)

    async def _stand_back(self, other: str) -> None:
        """Two heads must not fight over the nodes: the older one lets go of everything and waits for a person."""
        self.refusals = (two_heads(other),)
        self._crew.sequence = self._crew.sequence.close()
        self._record.boot = None
        await self._give_up(f"{other}; this head stands back")

    async def _failed_boot(self, error: Dsv41Error, recovering: bool) -> None:
        self.refusals = error.refusals
        why = str(error)
        self._record.note(f"boot failed: {why.splitlines()[0]}")
        log.error("the boot failed:\n%s", why)
        self.desk.tell("boot-failed", why, incident=True)
        try:
            await self._crew.stop_all("the boot failed", LOST_GRACE_S)
        except Dsv41Error as left:
            self.refusals = tuple(dict.fromkeys((*self.refusals, *left.refusals)))
        record = self._record
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
        self._set_state(FleetState.FAILED, why)

    async def _bring_down(self) -> None:
        if self.state is FleetState.DRAINING:
            await self.members[self.settings.fleet.head].drain()
            await self._drained()
        self._set_state(FleetState.STOPPING, "stopping")
        try:
            unseen = await self._crew.stop_all("down was asked for", self.settings.recovery.stop_timeout_s)
        except Dsv41Error as error:
            self.refusals = error.refusals
            self._set_state(FleetState.FAILED, str(error))
            return
        self.refusals = ()
        self._set_state(FleetState.DOWN, None)
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
        boot = self._record.boot
        assert boot is not None
        self._set_state(FleetState.STARTING, "looking whether the ranks of the boot before still serve")
        why_not = await adopt(self._crew, boot)
        # It may have found a newer one of its own.
        boot = self._record.boot or boot
        if why_not is None:
            self._record.served = True
            self._record.save()
            self._record.decide(f"adopted boot {boot.id}", "every rank is ready and the same")
            event(Event.FLEET_ADOPTED, f"adopted boot {boot.id}", stage=Stage.RANK)
            self._set_state(FleetState.SERVING, None)
            return
        self._record.decide(f"boot {boot.id} cannot be adopted; stopping what is left of it", why_not)
        try:
            await self._crew.stop_all("the boot before cannot be adopted", LOST_GRACE_S)
        except Dsv41Error as error:
            log.warning("%s", error)
        self._set_state(FleetState.DOWN, None)

    # -- pieces ------------------------------------------------------------------------------------------------------

    async def _or_new_order(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` until it ends or someone asks for something else."""
        self._order.clear()
        task = asyncio.ensure_future(work())
        ordered = asyncio.ensure_future(self._order.wait())
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
            self._record.wanted_up = False
            try:
                await self._crew.stop_all("the head's loop failed", LOST_GRACE_S)
            except Dsv41Error as left:
                self.refusals = left.refusals
            self._record.save()
            await self._give_up(f"a bug: {failure!r}")

    async def _next_order(self) -> None:
        await self._order.wait()
        self._order.clear()

    def _unwanted(self) -> None:
        self._record.wanted_up = False
        self._record.save()
        self._ordered()

    def _ordered(self) -> None:
        self._order.set()
        self.changes.bump()

    async def _write_again(self) -> None:
        """What could not be written is tried again until it is, or until cancelled."""
        while True:
            await asyncio.sleep(WRITE_AGAIN_S)
            if self._record.unwritten is not None:
                self._record.save()
                if self._record.unwritten is None:
                    self.changes.bump()

    def _set_state(self, state: FleetState, reason: str | None) -> None:
        if state is not self.state or reason != self.reason:
            log.info("fleet: %s -> %s%s", self.state, state, f": {reason}" if reason else "")
        self.state, self.reason = state, reason
        self.changes.bump()

    def _retry_after_s(self) -> float:
        """An estimate from the last boot: what is left of it, at least a second."""
        if self.state is FleetState.SERVING:
            return 0.0
        if self.state in (FleetState.STARTING, FleetState.RECOVERING):
            return round(max(1.0, self._record.last_boot_s - (time.monotonic() - self._boot_began_s)), 1)
        return 60.0
