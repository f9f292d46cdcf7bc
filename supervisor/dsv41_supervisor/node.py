"""One node: its lease, its stages 2–4, its rank and what is known about it. Takes orders, gives a status.

The head's supervisor orders (`prepare`, `start_rank`, `stop_rank`) and watches the status; so every order returns at
once and its outcome is seen by watching. The rank's own process asks `admit` and keeps calling `report`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsv41_adapters.registry import discover
from dsv41_adapters.report import read_counters, read_reports

from . import __version__
from .atomic import read_json, write_json
from .changes import Changes
from .errors import Dsv41Error, Refusal, Refused, Stage
from .fleet.lease import LeaseBook, StaleBoot
from .journal import Event, event, fields, log
from .pack import PROGRESS
from .rank.health import EngineProbe, Load, Movement, judge_arming
from .rank.phases import Phase, stall_limit_s
from .rank.plan import Boot, LaunchPlan, launch_plan, report_dir
from .rank.state import RankEvent, RankState, advance
from .settings import Settings
from .stages import prepare
from .units import Units, UnitState, UnitStatus
from .units.procfs import memory_available_bytes, rss_bytes

PACK_UNIT = "dsv41-pack"
REPORT_TIMEOUT_S = 15
"""A rank process that has not reported for this long is frozen (it reports every second)."""
FAILED_GRACE_S = 1.0
"""A failed rank has nothing left to finish: its peers hang in a collective until it is gone."""
TICK_S = 0.25
ENGINE_LOOK_S = 2.0
"""Between two looks at the head's engine; each costs it one pass over its metrics."""
N_LAST_LINES = 40


def rank_unit(rank: int) -> str:
    return f"dsv41-rank@{rank}"


@dataclass(slots=True)
class Preparation:
    """Stages 2–4 of one boot on this node."""

    state: str = "idle"
    stage: str | None = None
    refusals: tuple[Refusal, ...] = ()
    took_s: dict[str, float] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Rank:
    """What is known about this node's rank in this boot."""

    state: RankState = RankState.ABSENT
    since_s: float = field(default_factory=time.monotonic)
    reason: str | None = None
    refused: bool = False
    """True when trying again would end the same way (exit 78)."""
    phase: Phase = Phase.STARTING
    fraction: float | None = None
    mark: int = 0
    progress_at_s: float = 0.0
    reported_at_s: float = 0.0
    armed: dict[str, str] = field(default_factory=dict)
    exit_status: int | None = None
    last_lines: tuple[str, ...] = ()
    max_total_tokens: int | None = None
    memory_line: str | None = None


class NodeAgent:
    """The local side of the supervisor; lives in one event loop and is not thread-safe."""

    def __init__(self, settings: Settings, node: str, units: Units) -> None:
        self.settings = settings
        self.node = node
        self.rank_number = settings.fleet.nodes[node].rank
        self.changes = Changes()
        self._units = units
        self._state_path = settings.state_dir(node) / "node.json"
        self._leases = LeaseBook()
        self._preparation = Preparation()
        self._preparing: asyncio.Task[None] | None = None
        self._rank = Rank()
        self._plan: LaunchPlan | None = None
        self._admitted = asyncio.Event()
        self._draining = False
        self.probe = EngineProbe(settings.fleet.nodes[node].engine_port, settings.engine.served_model_name)
        self._specs = discover()
        self._warnings: deque[str] = deque(maxlen=20)
        self._memory_low_bytes: int | None = None
        self._stop_lock = asyncio.Lock()
        self._closing: set[asyncio.Task[Any]] = set()
        self._restore()

    # -- orders from the head --------------------------------------------------------------------------------------

    def prepare(self, boot: Boot) -> None:
        """Take the lease of a new boot and run stages 2–4. Raises StaleBoot; refused while a rank runs."""
        if self._rank.state not in (RankState.ABSENT, RankState.STOPPED, RankState.FAILED):
            raise StaleBoot(f"rank {self.rank_number} still runs ({self._rank.state}); stop it first")
        self._leases = self._leases.grant(boot, time.monotonic(), self.settings.supervisor.lease_ttl_s)
        self._save()
        if self._preparing is not None and not self._preparing.done():
            self._preparing.cancel()
        self._rank, self._plan, self._draining = Rank(), None, False
        self._admitted.clear()
        self._preparation = Preparation("running")
        self._preparing = asyncio.get_running_loop().create_task(self._prepare())
        self.changes.bump()

    async def start_rank(self, boot_id: str) -> None:
        """Start this node's rank in the boot whose lease is live. Raises StaleBoot or Dsv41Error."""
        boot = self._leases.live(time.monotonic())
        if boot is None or boot.id != boot_id:
            raise StaleBoot(f"boot {boot_id} has no live lease here")
        if self._rank.state in (RankState.STOPPED, RankState.FAILED):
            raise StaleBoot(f"rank {self.rank_number} of boot {boot_id} is {self._rank.state}: {self._rank.reason}")
        self._plan = launch_plan(self.settings, self.node, boot)
        self._admitted.set()
        await self._units.start(rank_unit(self.rank_number))
        if self._rank.state is RankState.ABSENT:
            self._move(RankEvent.STARTED)

    async def stop_rank(self, why: str, grace_s: float) -> dict[str, Any]:
        """Stop the rank and everything it started, by force after `grace_s`; says what is left. Ends the lease."""
        async with self._stop_lock:
            if self._preparing is not None and not self._preparing.done():
                self._preparing.cancel()
                await self._units.stop(PACK_UNIT, 5)
                self._preparation = Preparation("idle")
            self._plan = None
            self._admitted.clear()
            if self._rank.state in (RankState.CHECKING, RankState.LOADING, RankState.WARMING, RankState.READY,
                                    RankState.DRAINING):  # fmt: skip
                self._move(RankEvent.STOPPED, why)
            left = await self._units.stop(rank_unit(self.rank_number), grace_s)
            self._leases = self._leases.drop()
            self._save()
            self.changes.bump()
            return {"members": list(left.members), "port_free": await self._port_free()}

    def renew(self, boot_id: str) -> None:
        """The head still lives and means this boot. Raises StaleBoot."""
        self._leases = self._leases.renew(boot_id, time.monotonic(), self.settings.supervisor.lease_ttl_s)

    def drain(self) -> None:
        """Finish what runs; the gateway takes nothing new."""
        if self._rank.state is RankState.READY:
            self._draining = True
            self._move(RankEvent.DRAIN)

    # -- the rank's own process ------------------------------------------------------------------------------------

    async def admit(self, rank: int, wait_s: float) -> LaunchPlan | None:
        """The plan for a rank that asks to start; None when it was not ordered within `wait_s`."""
        if rank != self.rank_number:
            raise Dsv41Error(
                f"rank {rank} asked {self.node}, which runs rank {self.rank_number}.", stage=Stage.RANK,
                node=self.node, rank=rank, hint=f"Start dsv41-rank@{self.rank_number} on {self.node}.",
            )  # fmt: skip
        if self._rank.state is RankState.ABSENT:
            self._move(RankEvent.STARTED)
        try:
            async with asyncio.timeout(wait_s):
                await self._admitted.wait()
        except TimeoutError:
            return None
        plan = self._plan
        if plan is not None and self._rank.state is RankState.CHECKING:
            now = time.monotonic()
            self._rank.progress_at_s = self._rank.reported_at_s = now
            self._move(RankEvent.ADMITTED)
        return plan

    def report(self, rank: int, body: dict[str, Any]) -> dict[str, Any]:
        """What a rank's process says each second; answers whether it may go on."""
        now = time.monotonic()
        live = self._leases.live(now)
        if live is None or body.get("boot") != live.id or rank != self.rank_number:
            return {"go_on": False, "reason": f"boot {body.get('boot')} has no live lease on {self.node}"}
        known = self._rank
        known.reported_at_s = now
        known.last_lines = tuple(map(str, body.get("last_lines", ())))[-N_LAST_LINES:] or known.last_lines
        known.max_total_tokens = body.get("max_total_tokens") or known.max_total_tokens
        known.memory_line = body.get("memory_line") or known.memory_line
        if body.get("mark", 0) != known.mark:
            known.mark, known.progress_at_s = int(body["mark"]), now
            known.phase, known.fraction = Phase(body["phase"]), body.get("fraction")
            self.changes.bump()
        if body.get("lost") and known.state not in (RankState.STOPPED, RankState.FAILED):
            self._fail(str(body["lost"]))
        if body.get("exit_status") is not None and known.state not in (RankState.STOPPED, RankState.FAILED):
            known.exit_status = int(body["exit_status"])
            self._fail(f"the engine ended by itself ({_exit_text(known.exit_status)})", refused=known.exit_status == 78)
        return {
            "go_on": known.state not in (RankState.STOPPED, RankState.FAILED),
            "reason": known.reason,
            "ready": known.state is RankState.READY,
            "status": self._sentence(),
            "lease_left_s": self._leases.left_s(now),
        }

    def unit_exited(self, status: UnitStatus) -> None:
        """A unit of this node ended; called by the unit backend."""
        if status.name != rank_unit(self.rank_number):
            return
        state = self._rank.state
        if state in (RankState.CHECKING, RankState.LOADING, RankState.WARMING, RankState.READY, RankState.DRAINING):
            self._rank.exit_status = status.exit_status
            self._fail(
                f"its process ended ({_exit_text(status.exit_status)})", refused=status.exit_status == 78
            )

    # -- watching --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch the rank until cancelled: lease, stall timers, arming, readiness, memory."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_rank())
            group.create_task(self._watch_engine())
            group.create_task(self._guard_memory())

    async def close(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()
        await self.probe.close()

    async def _watch_rank(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            state = self._rank.state
            if self._leases.boot is not None and self._leases.live(now) is None:
                boot = self._leases.boot
                self._leases = self._leases.drop()
                self._save()
                event(Event.LEASE_EXPIRED, f"the lease of boot {boot.id} ran out; stopping", logging.WARNING,
                      stage=Stage.RANK)  # fmt: skip
                if state not in (RankState.ABSENT, RankState.STOPPED, RankState.FAILED):
                    self._fail("the head has not renewed the lease")
                if self._preparation.state == "running" and self._preparing is not None:
                    self._preparing.cancel()
                continue
            if state is RankState.ABSENT:
                await self._notice_adopted()
                continue
            if state in (RankState.LOADING, RankState.WARMING, RankState.READY, RankState.DRAINING):
                if now - self._rank.reported_at_s > REPORT_TIMEOUT_S:
                    self._fail(f"its process is frozen: no report for {now - self._rank.reported_at_s:.0f} s")
                    continue
                self._check_arming()
            if state is RankState.LOADING:
                limit = stall_limit_s(self._rank.phase, self.settings.engine.stall)
                still = now - self._rank.progress_at_s
                if limit is not None and still > limit:
                    self._fail(f"no progress in phase {self._rank.phase} for {still:.0f} s (limit {limit:.0f} s)")
                elif self._rank.phase in (Phase.WARMUP, Phase.SERVING):
                    self._move(RankEvent.LISTENING)

    async def _watch_engine(self) -> None:
        """Warming → ready, and for the head: /ready, canary, and tokens that move."""
        supervisor = self.settings.supervisor
        movement = Movement(self.settings.engine.stall.serving_s)
        canary_at_s = looked_at_s = 0.0
        before: Load | None = None
        while True:
            await asyncio.sleep(TICK_S)
            watched = self._rank
            if watched.state is RankState.WARMING:
                if await self._answers() and self._rank is watched and watched.state is RankState.WARMING:
                    if self._check_arming():
                        movement = Movement(self.settings.engine.stall.serving_s)
                        canary_at_s = time.monotonic()
                        self._move(RankEvent.ANSWERED)
                elif time.monotonic() - watched.progress_at_s > self.settings.engine.stall.warmup_s:
                    if watched.state is RankState.WARMING:
                        self._fail(f"listening for {self.settings.engine.stall.warmup_s:.0f} s, but no token came back")
            elif (
                watched.state is RankState.READY
                and self.rank_number == 0
                and time.monotonic() - looked_at_s > ENGINE_LOOK_S
            ):
                looked_at_s = time.monotonic()
                load = await self.probe.load()
                reason = movement.feed(load) if load is not None else None
                if reason is not None:
                    # The running count is refreshed only now and then (facts of 0.5.23): a token decides.
                    stuck = await self.probe.canary(supervisor.canary_timeout_s)
                    reason = f"{reason}, and {stuck}" if stuck is not None else None
                    movement = Movement(self.settings.engine.stall.serving_s)
                elif load is not None and load.moved(before):
                    canary_at_s = time.monotonic()
                elif time.monotonic() - canary_at_s > supervisor.canary_period_s:
                    canary_at_s = time.monotonic()
                    reason = await self.probe.canary(supervisor.canary_timeout_s)
                before = load
                if reason is not None and self._rank is watched and watched.state is RankState.READY:
                    self._fail(reason)

    async def _answers(self) -> bool:
        if self.rank_number != 0:
            return self._rank.phase is Phase.SERVING
        return await self.probe.ready() is None and (
            await self.probe.canary(self.settings.supervisor.canary_timeout_s) is None
        )

    async def _guard_memory(self) -> None:
        """1 Hz from the first second of loading: MemAvailable against the floor. Kills the rank, never waits."""
        guard = self.settings.guard
        while True:
            await asyncio.sleep(guard.period_s)
            if self._rank.state not in (RankState.LOADING, RankState.WARMING, RankState.READY, RankState.DRAINING):
                self._memory_low_bytes = None
                continue
            available = memory_available_bytes()
            self._memory_low_bytes = min(available, self._memory_low_bytes or available)
            if available < guard.floor_bytes:
                sentence = (f"MemAvailable is {available / 2**30:.2f} GiB, below the floor of "
                            f"{guard.floor_bytes / 2**30:.2f} GiB: killing rank {self.rank_number}")  # fmt: skip
                event(Event.MEMORY_FLOOR, sentence, logging.ERROR, stage=Stage.RANK)
                self._fail(sentence)
                await self._units.stop(rank_unit(self.rank_number), 0)

    # -- status ----------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Everything about this node that the head and `dsv41 status` show."""
        now = time.monotonic()
        rank, preparation = self._rank, self._preparation
        progress = read_json(self.settings.run_dir(self.node) / PROGRESS) if preparation.stage == Stage.PACK else None
        boot = self._leases.boot
        return {
            "version": self.changes.version,
            "node": self.node,
            "rank_number": self.rank_number,
            "highest_generation": self._leases.highest_generation,
            "boot": boot.to_json() if boot else None,
            "lease_left_s": round(self._leases.left_s(now), 1),
            "prepare": {
                "state": preparation.state,
                "stage": preparation.stage,
                "fraction": progress.get("fraction") if progress else None,
                "took_s": preparation.took_s,
                "refusals": [r.to_json() for r in preparation.refusals],
            },
            "rank": {
                "state": str(rank.state),
                "for_s": round(now - rank.since_s, 1),
                "reason": rank.reason,
                "refused": rank.refused,
                "phase": str(rank.phase),
                "fraction": rank.fraction,
                "armed": rank.armed,
                "exit_status": rank.exit_status,
                "last_lines": list(rank.last_lines),
                "max_total_tokens": rank.max_total_tokens,
                "sentence": self._sentence(),
            },
            "same": self.same_bits(),
            "memory": {"low_water_bytes": self._memory_low_bytes},
            "warnings": list(self._warnings),
            "supervisor": {"pid": os.getpid(), "rss_bytes": rss_bytes(os.getpid()), "version": __version__},
        }

    def same_bits(self) -> dict[str, Any]:
        """What must be equal on every rank of a boot; the head compares and names both values."""
        return {
            "supervisor version": __version__,
            "settings hash": self.settings.hash,
            "kernel": os.uname().release,
            "checkpoint revision": self.settings.checkpoint.revision,
            "adapters asked": ", ".join(sorted(self.settings.adapters_asked)) or "none",
        }

    async def measure(self) -> dict[str, Any]:
        """Figures that change all the time: memory of the rank's processes, counters of the adapters."""
        status = await self._units.status(rank_unit(self.rank_number))
        boot = self._leases.boot
        counters = read_counters(report_dir(self.settings, self.node), boot.id) if boot else {}
        return {
            "unit": str(status.state),
            "n_processes": len(status.members),
            "rank_rss_bytes": sum(rss_bytes(pid) for pid in status.members),
            "counters": counters,
            "memory_available_bytes": memory_available_bytes(),
        }

    async def tail(self, unit: str, n_lines: int) -> list[str]:
        return list(await self._units.tail(unit, n_lines))

    # -- private ---------------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        preparation = self._preparation

        def entered(stage: Stage) -> None:
            preparation.stage = stage
            self.changes.bump()

        try:
            with fields(node=self.node):
                done = await prepare(self.settings, self.node, self._run_pack, entered)
            preparation.took_s = done.took_s
            preparation.rows = {str(layer.layer): layer.n_rows for layer in done.pack.layers}
            preparation.state = "passed"
        except Dsv41Error as error:
            preparation.state, preparation.refusals = "refused", error.refusals
            for refusal in error.refusals:
                event(Event.STAGE_REFUSED, str(refusal), logging.ERROR, stage=refusal.stage)
        except asyncio.CancelledError:
            preparation.state = "idle"
            raise
        except Exception as error:
            log.exception("preparing failed")
            preparation.state = "refused"
            preparation.refusals = (Refusal(Stage(preparation.stage or Stage.CONFIG), f"a bug: {error!r}.",
                                            "Report it with the supervisor's log.", node=self.node),)  # fmt: skip
        finally:
            self.changes.bump()

    async def _run_pack(self) -> None:
        """Run the pack unit to its end. Raises Refused with its last line."""
        await self._units.start(PACK_UNIT)
        while (status := await self._units.status(PACK_UNIT)).state in (UnitState.ACTIVE, UnitState.STOPPING):
            await asyncio.sleep(0.1)
        if status.state is UnitState.FAILED:
            lines = [line for line in await self._units.tail(PACK_UNIT, 20) if line.strip()]
            raise Refused(
                [Refusal(Stage.PACK, f"packing failed: {lines[-1] if lines else 'it said nothing'}",
                         f"Run dsv41 logs {self.node} --unit pack.", node=self.node, rank=self.rank_number,
                         transient=status.exit_status == 69)]
            )  # fmt: skip

    def _check_arming(self) -> bool:
        """Compare asked and armed; fails the rank on a refusal. True when armed as asked."""
        boot = self._leases.boot
        asked = self.settings.adapters_asked
        if boot is None or not asked:
            return boot is not None
        arming = judge_arming(asked, self._specs, read_reports(report_dir(self.settings, self.node), boot.id))
        if arming.states != self._rank.armed:
            self._rank.armed = arming.states
            self.changes.bump()
        if arming.refused and self._rank.state is not RankState.FAILED:
            self._fail("; ".join(arming.refused), refused=True)
        return arming.reason is None

    def _move(self, what: RankEvent, reason: str | None = None) -> None:
        before = self._rank.state
        self._rank.state = advance(before, what)
        self._rank.since_s = self._rank.progress_at_s = time.monotonic()
        self._rank.reason = reason
        log.info("rank %d: %s -> %s%s", self.rank_number, before, self._rank.state, f": {reason}" if reason else "")
        self._save()
        self.changes.bump()

    def _fail(self, reason: str, *, refused: bool = False) -> None:
        self._rank.refused = refused
        last = [line for line in self._rank.last_lines if line.strip()][-1:]
        event(Event.RANK_LOST, f"rank {self.rank_number} failed: {reason}" + (f" (last line: {last[0]})" if last else ""),
              logging.ERROR, stage=Stage.RANK)  # fmt: skip
        self._move(RankEvent.FAILED, reason)
        # The unit is stopped by whoever owns the boot; a rank without a head to say so stops by itself here.
        task = asyncio.get_running_loop().create_task(
            self._units.stop(rank_unit(self.rank_number), FAILED_GRACE_S)
        )
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _sentence(self) -> str:
        rank = self._rank
        if rank.state is RankState.LOADING:
            percent = f" {rank.fraction * 100:.0f} %" if rank.fraction is not None else ""
            return f"loading, {rank.phase}{percent}"
        return f"{rank.state}{f': {rank.reason}' if rank.reason else ''}"

    async def _port_free(self) -> bool:
        port = self.settings.fleet.nodes[self.node].engine_port
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 1)
        except (OSError, TimeoutError):
            return True
        writer.close()
        return False

    def _save(self) -> None:
        boot = self._leases.boot
        try:
            write_json(
                self._state_path,
                {
                    "highest_generation": self._leases.highest_generation,
                    "boot": boot.to_json() if boot else None,
                    "rank_state": str(self._rank.state),
                },
            )
        except OSError as error:
            self._warn(f"cannot write {self._state_path}: {error.strerror}")

    def _warn(self, sentence: str) -> None:
        if sentence not in self._warnings:
            self._warnings.append(sentence)
            log.warning("%s", sentence)

    def _restore(self) -> None:
        """What the supervisor before us knew; a rank that still runs under a remembered boot may be adopted."""
        raw = read_json(self._state_path)
        if raw is None:
            return
        try:
            boot = Boot.from_json(raw["boot"]) if raw.get("boot") else None
            generation = int(raw["highest_generation"])
        except (KeyError, TypeError, ValueError):
            log.warning("%s has another shape; starting without it", self._state_path)
            return
        ttl = self.settings.supervisor.lease_ttl_s
        expires = time.monotonic() + ttl if boot else 0.0
        self._leases = LeaseBook(generation, boot, expires)
        self._restored_boot = boot

    _restored_boot: Boot | None = None

    async def _notice_adopted(self) -> None:
        """A rank that outlived a restart of its supervisor is taken up where it was."""
        if self._restored_boot is None or self._leases.boot != self._restored_boot:
            return
        status = await self._units.status(rank_unit(self.rank_number))
        boot, self._restored_boot = self._restored_boot, None
        if status.state is not UnitState.ACTIVE:
            return
        self._plan = launch_plan(self.settings, self.node, boot)
        self._rank.reported_at_s = time.monotonic()
        for step in (RankEvent.STARTED, RankEvent.ADMITTED):
            self._move(step)
        log.info("rank %d of boot %s outlived the supervisor; taking it up again", self.rank_number, boot.id)


def _exit_text(status: int | None) -> str:
    if status is None:
        return "no exit status"
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"


def clear_reports(directory: Path) -> None:
    """Reports of an earlier boot are removed before a rank starts."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in [*directory.glob("armed-*"), *directory.glob("counters-*")]:
        path.unlink(missing_ok=True)
