"""One node: its lease, its stages 2–4 and its rank. Takes orders.

`node_preparing.py` runs stages 2–4, `node_shown.py` gives the status, `node_found.py` hears of memory and rails.
The head's supervisor orders (`prepare`, `start_rank`, `stop_rank`) and watches the status; so every order returns at
once and its outcome is seen by watching. The rank's own process asks `admit` and keeps calling `report`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from dsv41_adapters.registry import discover
from dsv41_adapters.report import read_reports

from .atomic import read_json
from .changes import Changes
from .errors import Dsv41Error, Exit, Stage
from .fabric.agent import NodeFabric
from .fabric.ruleset import ruleset_of
from .fleet.keeper import LeaseKeeper
from .fleet.lease import (
    RAN_OUT,
    Failed,
    Gone,
    Grant,
    Hold,
    LeaseBook,
    Looked,
    Renew,
    Stamp,
    Start,
    StartRank,
    Stop,
    StopRank,
    Tick,
)  # fmt: skip
from .guard.link import GuardLink, kill_sentence
from .incident.rails import RailHistory
from .journal import Event, event, log
from .light import give_back
from .node_containers import NodeContainers
from .node_found import NodeFound
from .node_preparing import PACK_STOP_S, NodePreparing
from .node_shown import NodeShown
from .notices import Notices
from .rank.health import EngineProbe, judge_arming
from .rank.memory import MemoryLevel
from .rank.phases import Phase
from .rank.plan import PLAN, Boot, LaunchPlan, launch_plan, report_dir
from .rank.port import becomes_free
from .rank.record import ENDED, RUNNING, RankRecord
from .rank.state import RankEvent, RankState, advance
from .rank.watch import RankWatch
from .settings import Settings
from .units import PACK_UNIT, Units, UnitState, UnitStatus, rank_unit

FAILED_GRACE_S = 1.0
"""A failed rank has nothing left to finish: its peers hang in a collective until it is gone."""
TURNED_AWAY_S = 3.0
N_LAST_LINES = 40


class NodeAgent:
    """The local side of the supervisor; lives in one event loop and is not thread-safe."""

    def __init__(self, settings: Settings, node: str, units: Units) -> None:
        self.settings = settings
        self.node = node
        self.rank_number = settings.fleet.nodes[node].rank
        self.changes = Changes()
        self.shown = NodeShown(self)
        self.found = NodeFound(self)
        self.units = units
        self.warnings: deque[str] = deque(maxlen=20)
        self.lease = LeaseKeeper(settings, node)
        self.preparing = NodePreparing(self)
        self.rank = RankRecord()
        self._plan: LaunchPlan | None = None
        self._admitted = asyncio.Event()
        self.probe = EngineProbe(settings.fleet.nodes[node].engine_port, settings.engine.served_model_name)
        self.fabric = NodeFabric(settings, node, self.found.rails_changed, ruleset=ruleset_of(settings, node, units))
        self.containers = NodeContainers(settings, node, units)
        self._specs = discover()
        self.engine_load: dict[str, float] | None = None
        """Requests and tokens a second of the head's engine while it serves."""
        self._stop_lock = asyncio.Lock()
        self.guard = GuardLink(settings, node, units, self.found.guard_said)
        self.notices = Notices(node)
        self.rails = RailHistory(settings.fleet.nodes[node].rails)
        self.head_is_silent: Callable[[str], None] | None = None
        """Told by a worker that lost its head; nobody else can."""
        self._heard_head_at_s = 0.0
        self._told_silent_in: str | None = None
        """The boot of which that was told."""
        self.watch = RankWatch(self)
        self._closing: set[asyncio.Task[Any]] = set()
        self.on_stopped_by_hand: Callable[[str], object] | None = None
        """On the head: stopping rank 0's unit is an order to the fleet, as starting it is."""
        self.on_going_down: Callable[[], object] | None = None
        """On the head: the machine is being shut down, and so is the fleet's owner."""
        self.started_by_order = False
        """Whether the unit that runs was started here, and not by a person."""
        self._turned_away: str | None = None
        self._unit_ended = asyncio.Event()
        self._ending: str | None = None
        """Boot of the rank that is being stopped politely: it may finish what it does."""
        self.memory_level = MemoryLevel()
        self.waits_for: str | None = None
        """What stopping waits for, when that takes longer than it should."""

    @property
    def leases(self) -> LeaseBook:
        """What is known about the lease now; only `self.lease` changes it."""
        return self.lease.book

    # -- orders from the head --------------------------------------------------------------------------------------

    def prepare(self, boot: Boot, stamp: Stamp, override: Iterable[str] = ()) -> None:
        """Take the lease of a new boot and run stages 2–4. Raises StaleBoot; refused while a rank runs.

        `stamp` is the one of the status that the head answers to. `override` names checks whose refusal does not stop
        this boot.
        """
        self._heard_head_at_s = time.monotonic()
        again = boot == self.leases.boot
        self.lease.happens(Grant(boot, stamp))
        if again:
            return
        waiting = self.waiting
        self.preparing.cancel()
        self.rank, self._plan = RankRecord(), None
        self.shown.running_bits = {}
        self._admitted.clear()
        if waiting:
            self.move(RankEvent.STARTED)
        self.fabric.override = tuple(override)
        self.preparing.begin(boot.id)
        self.changes.bump()

    async def start_rank(self, boot_id: str) -> None:
        """Start this node's rank in the boot whose lease is live. Raises StaleBoot or Dsv41Error."""
        async with self._stop_lock:
            await self._start_rank(boot_id)

    async def _start_rank(self, boot_id: str) -> None:
        await self.guard.require()
        facts = await self.fabric.for_launch()
        for action in self.lease.happens(Start(boot_id)):
            assert isinstance(action, StartRank)
            boot = action.boot
            try:
                self._plan = launch_plan(self.settings, self.node, boot, facts)
                self.fabric.launched(boot.id, facts)
                self.memory_level.rank_starts()
                self._turned_away = None
                self._admitted.set()
                self.started_by_order = True
                await self.units.start(rank_unit(self.rank_number))
            except BaseException:
                self.lease.happens(Failed())
                self._in_background(self._stop_what_is_left())
                raise
            await self.found.guard_rank(boot.id)
            if self.rank.state is RankState.ABSENT:
                self.move(RankEvent.STARTED)

    async def stop_rank(
        self, why: str, grace_s: float, keep_waiting: bool = False, generation: int | None = None
    ) -> dict[str, Any]:
        """Stop the rank and everything it started, by force after `grace_s`; says what is left. Ends the lease, and
        forbids every boot up to `generation` (None: up to the newest known here). Raises StaleBoot for a newer one.

        A process that waits to be admitted runs no engine: with `keep_waiting` it goes on waiting, otherwise it is
        told why it is not admitted, and ends by itself.
        """
        self._heard_head_at_s = time.monotonic()
        async with self._stop_lock:
            await self.look()
            waiting = self.waiting or (keep_waiting and await self._about_to_ask())
            self._ending = self.leases.boot.id if self.leases.boot is not None else None
            try:
                self.lease.happens(Stop(self.leases.highest_generation if generation is None else generation, why))
                await self.preparing.call_off()
                self._plan = None
                self._admitted.clear()
                self.fabric.stopped()
                members: tuple[int, ...] = ()
                if not (waiting and keep_waiting):
                    if self.rank.state in (RankState.CHECKING, *RUNNING):
                        self.move(RankEvent.STOPPED, why)
                    if waiting:
                        await self._turn_away(why)
                    members = (await self.units.stop(rank_unit(self.rank_number), grace_s)).members
                    self.started_by_order = False
            finally:
                self._ending = None
            if not members:
                self._rank_is_gone()
            self.changes.bump()
            holder = await becomes_free(self.settings.fleet.nodes[self.node].engine_port, self._waits)
            return {
                "members": list(members),
                "containers": [] if waiting and keep_waiting else await self.containers.left(),
                "port_free": holder is None,
                "port_holder": holder.words if holder is not None else None,
                "port_holder_pid": holder.pid if holder is not None else None,
                "memory_missing_bytes": 0 if members else await self.memory_level.missing_bytes(),
                **self.shown.lease_json(),
            }

    async def _stop_what_is_left(self) -> None:
        """A rank that ended by itself may have left processes: they go before anything else is started here."""
        async with self._stop_lock:
            if self.leases.hold is Hold.RUNNING or self.rank.state not in (*ENDED, RankState.ABSENT):
                return
            if not (await self.units.stop(rank_unit(self.rank_number), FAILED_GRACE_S)).members:
                self._rank_is_gone()

    def _rank_is_gone(self) -> None:
        self.lease.happens(Gone())
        # Whoever finds a plan later finds a rank that runs: see `look`.
        (report_dir(self.settings, self.node) / PLAN).unlink(missing_ok=True)
        self.changes.bump()

    def renew(self, boot_id: str, stamp: Stamp) -> None:
        """The head still lives and means this boot. Raises StaleBoot."""
        self._heard_head_at_s = time.monotonic()
        self.lease.happens(Renew(boot_id, stamp))

    def drain(self) -> None:
        """Finish what runs; the gateway takes nothing new."""
        if self.rank.state is RankState.READY:
            self.move(RankEvent.DRAIN)

    # -- the rank's own process ------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """A rank's process waits to be admitted; there is no engine yet."""
        return self.rank.state is RankState.CHECKING and not self._admitted.is_set()

    async def _about_to_ask(self) -> bool:
        """Somebody has started the rank's unit, and its process has not come to ask yet."""
        if self.started_by_order or self.rank.state not in (RankState.ABSENT, *ENDED):
            return False
        status = await self.units.status(rank_unit(self.rank_number))
        return status.state is UnitState.ACTIVE and not (report_dir(self.settings, self.node) / PLAN).exists()

    async def knocked(self, rank: int) -> None:
        """A rank's process asks to start. Raises Dsv41Error for a rank of another node."""
        if rank != self.rank_number:
            raise Dsv41Error(
                f"rank {rank} asked {self.node}, which runs rank {self.rank_number}.", stage=Stage.RANK,
                node=self.node, rank=rank, hint=f"Start dsv41-rank@{self.rank_number} on {self.node}.",
            )  # fmt: skip
        if self.rank.state in ENDED:
            # Whoever asks while a stop is under way is being stopped; only one that is there afterwards is a new one.
            async with self._stop_lock:
                status = await self.units.status(rank_unit(rank))
            if status.state is not UnitState.ACTIVE or self.rank.state not in ENDED:
                return
            self.rank, self._turned_away = RankRecord(), None
        if self.rank.state is RankState.ABSENT:
            self.move(RankEvent.STARTED)

    async def admit(self, wait_s: float) -> LaunchPlan | None:
        """The plan for the rank that knocked; None when it was not ordered within `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                await self._admitted.wait()
        except TimeoutError:
            return None
        plan = self._plan
        if plan is None and self._turned_away is not None:
            raise Dsv41Error(
                f"not admitted: {self._turned_away}.", stage=Stage.RANK, node=self.node, rank=self.rank_number,
                transient=True, hint="Run dsv41 status: it names the reasons.",
            )  # fmt: skip
        if plan is not None and self.rank.state is RankState.CHECKING:
            now = time.monotonic()
            self.rank.progress_at_s = self.rank.reported_at_s = now
            self.move(RankEvent.ADMITTED)
        return plan

    def report(self, rank: int, body: dict[str, Any]) -> dict[str, Any]:
        """What a rank's process says each second; answers whether it may go on."""
        now = time.monotonic()
        live = self.leases.live(now)
        ending = self._ending is not None and body.get("boot") == self._ending
        known_boot = self.leases.boot.id if self.leases.boot is not None else None
        if self.leases.hold is Hold.UNKNOWN and body.get("boot") == known_boot:
            # This supervisor has just started and has not looked yet: the rank goes on by its own count.
            return {"go_on": True, "reason": None, "ready": False, "status": "", "lease_left_s": None}
        if not ending and (live is None or body.get("boot") != live.id) or rank != self.rank_number:
            return {"go_on": False, "reason": f"boot {body.get('boot')} has no live lease on {self.node}"}
        known = self.rank
        known.reported_at_s = now
        known.last_lines = tuple(map(str, body.get("last_lines", ())))[-N_LAST_LINES:] or known.last_lines
        known.max_total_tokens = body.get("max_total_tokens") or known.max_total_tokens
        known.memory_line = body.get("memory_line") or known.memory_line
        if body.get("mark", 0) != known.mark:
            known.mark, known.progress_at_s = int(body["mark"]), now
            known.phase, known.fraction = Phase(body["phase"]), body.get("fraction")
            self.changes.bump()
        if body.get("lost") and known.state not in ENDED:
            self.fail(str(body["lost"]))
        if body.get("exit_status") is not None and known.state not in ENDED:
            self._ended("the engine ended by itself", int(body["exit_status"]))
        return {
            "go_on": ending or known.state not in ENDED,
            "reason": known.reason,
            "ready": known.state is RankState.READY,
            "status": self.rank.sentence,
            "lease_left_s": self.lease.left_for_rank_s(),
        }

    def unit_exited(self, status: UnitStatus) -> None:
        """A unit of this node ended; called by the unit backend."""
        if status.name != rank_unit(self.rank_number):
            return
        self._unit_ended.set()
        running = self.rank.state in RUNNING
        if status.exit_status == Exit.OK and (running or (self.waiting and not self.started_by_order)):
            # It ends so only after a signal; what it says before that may not have come through.
            self._in_background(self._stopped_by_another())
        elif self.rank.state in (RankState.CHECKING, *RUNNING):
            self._ended("its process ended", status.exit_status)
        elif self.leases.hold is not Hold.NONE:
            self._in_background(self._stop_what_is_left())

    async def _stopped_by_another(self) -> None:
        await self.told_to_stop()
        await self._stop_what_is_left()

    async def told_to_stop(self) -> None:
        """Somebody else than this supervisor stops the rank's unit: a person, or the machine that is shut down."""
        if self.rank.state not in (RankState.CHECKING, *RUNNING):
            return
        if await self.units.going_down():
            # Not a wish of anybody's: the fleet stays wanted, and comes back with the machine.
            if self.on_going_down is None:
                self.fail("this machine is being shut down")
                return
            # The head must not judge from here on: systemd lets it stop and start nothing any more, and what it would
            # write down as a failed recovery would be found after the reboot. Workers stop when its lease runs out.
            log.warning("this machine is being shut down; the fleet stays as it is wanted")
            self.on_going_down()
            return
        sentence = f"systemctl stop {rank_unit(self.rank_number)}"
        what = f"rank {self.rank_number} was stopped by hand ({sentence})"
        event(Event.STOPPED_BY_HAND, what, logging.WARNING, stage=Stage.RANK)
        if self.on_stopped_by_hand is not None:
            self.on_stopped_by_hand(sentence)
        self.move(RankEvent.STOPPED, f"stopped by hand on {self.node} ({sentence})")

    # -- what watching finds -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch the rank until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.guard.run())
            group.create_task(self.rails.run())
            group.create_task(self.shown.know_bits())
            group.create_task(self.watch.run())
            group.create_task(self.fabric.watch.run())

    async def close(self) -> None:
        self.preparing.cancel()
        await self.probe.close()

    def lease_ticks(self) -> None:
        """Time passed. A rank whose head is silent stops itself."""
        boot = self.leases.boot
        stopping = [a for a in self.lease.happens(Tick()) if isinstance(a, StopRank)]
        if boot is None or self.leases.boot is not None:
            return
        sentence = f"the lease of boot {boot.id} ran out; stopping"
        event(Event.LEASE_EXPIRED, sentence, logging.WARNING, stage=Stage.RANK)
        if stopping or self.rank.state not in (RankState.ABSENT, *ENDED):
            self.fail(RAN_OUT)
            self._tell_head_is_silent(boot.id, f"was stopped: {sentence}")
        if self.preparing.cancel():
            self._in_background(self.units.stop(PACK_UNIT, PACK_STOP_S))
        self.changes.bump()

    def _tell_head_is_silent(self, boot_id: str, sentence: str) -> None:
        if self.head_is_silent is not None and self._told_silent_in != boot_id:
            self._told_silent_in = boot_id
            self.head_is_silent(f"{self.node}: the head is silent; rank {self.rank_number} {sentence}")

    async def _unless_the_head_is_heard(self, since_s: float, boot_id: str, sentence: str) -> None:
        """A head that lives stops what a failed rank left. Without one, its rank ends first, and then ours, sooner than
        our lease: that failure is all that is ever seen here."""
        await asyncio.sleep(self.settings.supervisor.lease_ttl_s)
        if self._heard_head_at_s < since_s:
            self._tell_head_is_silent(boot_id, f"failed: {sentence}")

    async def _turn_away(self, why: str) -> None:
        """Tell the waiting process why it is not admitted, and give it a moment to say so and end."""
        self._unit_ended.clear()
        self._turned_away = why
        self._admitted.set()
        self._admitted.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._unit_ended.wait(), TURNED_AWAY_S)

    # -- what others ask ---------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Everything about this node that the head and `dsv41 status` show."""
        return self.shown.status()

    async def measure(self) -> dict[str, Any]:
        """Figures that change all the time: memory of the rank's processes, counters of the adapters."""
        return await self.shown.measure()

    async def tail(self, unit: str, n_lines: int) -> list[str]:
        return list(await self.units.tail(unit, n_lines))

    # -- private ---------------------------------------------------------------------------------------------------

    def armed_as_asked(self) -> bool:
        """Compare asked and armed; fails the rank on a refusal. True when armed as asked."""
        boot = self.leases.boot
        asked = self.settings.adapters_asked
        if boot is None or not asked:
            return boot is not None
        arming = judge_arming(asked, self._specs, read_reports(report_dir(self.settings, self.node), boot.id))
        if arming.states != self.rank.armed:
            self.rank.armed = arming.states
            self.changes.bump()
        if arming.refused and self.rank.state is not RankState.FAILED:
            self.fail("; ".join(arming.refused), refused=True)
        return arming.reason is None

    def move(self, what: RankEvent, reason: str | None = None) -> None:
        before = self.rank.state
        self.rank.state = advance(before, what)
        if self.rank.state is RankState.READY:
            # What the checks of a boot read is not needed while it serves.
            give_back()
        self.rank.since_s = self.rank.progress_at_s = time.monotonic()
        self.rank.reason = reason
        log.info("rank %d: %s -> %s%s", self.rank_number, before, self.rank.state, f": {reason}" if reason else "")
        self.changes.bump()

    def _ended(self, what: str, exit_status: int | None) -> None:
        """The engine is gone; a refused adapter says why better than the exit status does."""
        self.rank.exit_status = exit_status
        self.armed_as_asked()
        if self.rank.state is not RankState.FAILED:
            self.fail(f"{what} ({_exit_text(exit_status)})", refused=exit_status == Exit.REFUSED)

    def fail(self, reason: str, *, refused: bool = False) -> None:
        killed = self.guard.heard_kill(self.leases.boot.id if self.leases.boot else None)
        if killed is not None:
            # Its death is seen in many ways at once; this is the reason for all of them.
            reason, refused = kill_sentence(killed), False
        self.rank.refused = refused
        last = [line for line in self.rank.last_lines if line.strip()][-1:]
        sentence = f"rank {self.rank_number} failed: {reason}" + (f" (last line: {last[0]})" if last else "")
        event(Event.RANK_LOST, sentence, logging.ERROR, stage=Stage.RANK)
        self.move(RankEvent.FAILED, reason)
        if self.leases.boot is not None and self.head_is_silent is not None:
            self._in_background(self._unless_the_head_is_heard(time.monotonic(), self.leases.boot.id, reason))
        self.lease.happens(Failed())
        # The unit is stopped by whoever owns the boot; a rank without a head to say so stops by itself here.
        self._in_background(self._stop_what_is_left())

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._done_in_background)

    def _done_in_background(self, task: asyncio.Task[Any]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            if isinstance(failure, Dsv41Error):
                self.warn(str(failure))
            else:
                log.error("background work of %s failed", self.node, exc_info=failure)

    def _waits(self, what: str | None) -> None:
        if what != self.waits_for:
            self.waits_for = what
            self.changes.bump()

    def warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)
            log.warning("%s", sentence)

    @property
    def taking_up(self) -> bool:
        """A rank of the supervisor before is, or is about to be, looked at: neither lost nor known to be ready yet."""
        if self.leases.hold is Hold.UNKNOWN:
            return self.leases.boot is not None
        return self.rank.taken_up and self.rank.state not in (RankState.READY, RankState.DRAINING, *ENDED)

    async def look(self) -> None:
        """What a supervisor that has just started does first: whether a rank runs here, and of which boot.

        A rank that runs in the boot of the remembered lease is taken up where it was, any other is stopped.
        """
        if self.leases.hold is not Hold.UNKNOWN:
            return
        try:
            status = await self.units.status(rank_unit(self.rank_number))
        except Dsv41Error as error:
            self.warn(f"it cannot be seen yet whether the rank of the boot before runs: {error}")
            return
        plan = read_json(report_dir(self.settings, self.node) / PLAN)
        # A process without a plan waits to be admitted: no engine, no rank.
        running = plan if status.members or status.state in (UnitState.ACTIVE, UnitState.STOPPING) else None
        if self.leases.hold is not Hold.UNKNOWN:
            return
        stopping = self.lease.happens(Looked(str(running["boot"]) if running else None))
        boot = self.leases.boot
        if stopping:
            log.warning("%s", stopping[0])
            self._in_background(self._stop_what_is_left())
        elif boot is not None:
            self.rank.taken_up = True
            self._admitted.set()
            self.started_by_order = True
            self.rank.reported_at_s = time.monotonic()
            for step in (RankEvent.STARTED, RankEvent.ADMITTED):
                self.move(step)
            await self.fabric.taken_up(boot.id)
            try:
                self._plan = launch_plan(self.settings, self.node, boot, await self.fabric.for_launch())
            except Dsv41Error as error:
                # A GID that moved meanwhile is no reason to stop a rank that serves: its connections go on.
                self.warn(f"the running rank could not be launched like this again: {error}")
            await self.found.guard_rank(boot.id)
            log.info("rank %d of boot %s outlived the supervisor; taking it up again", self.rank_number, boot.id)
        else:
            self._rank_is_gone()


def _exit_text(status: int | None) -> str:
    if status is None:
        return "no exit status"
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"


def clear_reports(directory: Path) -> None:
    """Reports of an earlier boot are removed before a rank starts."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in [*directory.glob("armed-*"), *directory.glob("counters-*")]:
        path.unlink(missing_ok=True)
