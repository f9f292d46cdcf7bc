"""Watches one rank: lease, stall timers, arming, answers, memory. Each loop only looks and tells the agent.

Ready means: the unit runs, the adapters are armed as asked, and (on the head) /ready and a one-token canary through
all ranks came back. Later: requests running means tokens moving.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from ..units.procfs import memory_available_bytes
from .health import Load, Movement
from .phases import Phase, stall_limit_s
from .record import RUNNING, RankRecord
from .state import RankEvent, RankState

if TYPE_CHECKING:
    from ..node import NodeAgent

TICK_S = 0.25
QUIET_TICK_S = 1.0
ARMED_LOOK_S = 5.0
"""Between two looks at the adapters' reports of a rank that serves: each reads a file a process."""
ENGINE_LOOK_S = 2.0
"""Between two looks at the head's engine; each costs it one pass over its metrics."""
GUARD_AWAY_S = 5.0
"""A guard that is restarted is back sooner."""
REPORT_TIMEOUT_S = 15
"""A rank process that has not reported for this long is frozen (it reports every second)."""


class RankWatch:
    """The loops of one supervisor. `low_water_bytes` is the least memory seen while the rank ran."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._settings = agent.settings
        self.low_water_bytes: int | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_process())
            group.create_task(self._watch_engine())
            group.create_task(self._guard_memory())

    async def _watch_process(self) -> None:
        agent, looked_at_s = self._agent, 0.0
        while True:
            quiet = self._agent.rank.state is RankState.READY
            await asyncio.sleep(2 * TICK_S if quiet else TICK_S)
            now = time.monotonic()
            await agent.look()
            agent.lease_ticks()
            rank = agent.rank
            if rank.state not in RUNNING:
                continue
            if now - rank.reported_at_s > REPORT_TIMEOUT_S:
                agent.fail(f"its process is frozen: no report for {now - rank.reported_at_s:.0f} s")
                continue
            if rank.state is RankState.READY and now - looked_at_s < ARMED_LOOK_S:
                continue
            looked_at_s = now
            agent.armed_as_asked()
            clamped = agent.shown.kv_budget().clamped(self._settings.engine.memory.min_granted_fraction)
            if clamped is not None and rank.state in (RankState.LOADING, RankState.WARMING):
                agent.fail(clamped, refused=True)
                continue
            if rank.state is RankState.LOADING:
                self._watch_loading(rank, now)

    def _watch_loading(self, rank: RankRecord, now: float) -> None:
        if rank.phase in (Phase.WARMUP, Phase.SERVING):
            self._agent.move(RankEvent.LISTENING)
            return
        limit = stall_limit_s(rank.phase, self._settings.engine.stall)
        still = now - rank.progress_at_s
        if limit is not None and still > limit:
            self._agent.fail(f"no progress in phase {rank.phase} for {still:.0f} s (limit {limit:.0f} s)")

    async def _watch_engine(self) -> None:
        served: RankRecord | None = None
        serving: _Serving | None = None
        while True:
            # Only a rank that is coming up is waited for by somebody; the rest is looked at less often than that.
            coming_up = self._agent.rank.state in (RankState.LOADING, RankState.WARMING)
            await asyncio.sleep(TICK_S if coming_up else QUIET_TICK_S)
            rank = self._agent.rank
            if rank.state is RankState.WARMING:
                await self._warm(rank)
            elif rank.state not in (RankState.READY, RankState.DRAINING):
                self._agent.engine_load = None
            elif rank.state is RankState.READY and self._agent.rank_number == 0:
                if serving is None or served is not rank:
                    served, serving = rank, _Serving(self._agent)
                reason = await serving.look()
                if reason is not None and self._is(rank, RankState.READY):
                    self._agent.fail(reason)

    async def _warm(self, rank: RankRecord) -> None:
        if await self._answers():
            wrong = await self._agent.shown.runs_as_planned()
            if self._is(rank, RankState.WARMING) and self._agent.armed_as_asked():
                if wrong is not None:
                    self._agent.fail(wrong, refused=True)
                else:
                    self._agent.move(RankEvent.ANSWERED)
            return
        limit = self._settings.engine.stall.warmup_s
        if self._is(rank, RankState.WARMING) and time.monotonic() - rank.progress_at_s > limit:
            self._agent.fail(f"listening for {limit:.0f} s, but no token came back")

    async def _answers(self) -> bool:
        if self._agent.rank_number != 0:
            return self._agent.rank.phase is Phase.SERVING
        probe, timeout_s = self._agent.probe, self._settings.supervisor.canary_timeout_s
        return await probe.ready() is None and await probe.canary(timeout_s) is None

    def _is(self, rank: RankRecord, state: RankState) -> bool:
        """Whether this is still the same rank in the same state: a question to the engine takes time."""
        return self._agent.rank is rank and rank.state is state

    async def _guard_memory(self) -> None:
        """The least memory seen while the rank runs; and the guard's second, while the guard itself is away."""
        guard, agent, missing = self._settings.guard, self._agent, False
        while True:
            await asyncio.sleep(guard.period_s)
            if agent.rank.state not in RUNNING:
                self.low_water_bytes = None
                continue
            available = memory_available_bytes()
            self.low_water_bytes = min(available, self.low_water_bytes or available)
            agent.memory_level.seen(available)
            lost_at_s = agent.guard.lost_at_s
            if lost_at_s is None:
                missing = False
                continue
            if not missing and time.monotonic() - lost_at_s > GUARD_AWAY_S:
                missing = True
                agent.found.guard_is_missing(time.monotonic() - lost_at_s)
            if available < guard.floor_bytes:
                await agent.found.memory_below_floor(available)


class _Serving:
    """The head's engine while it serves: tokens that move, or a canary that comes back."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._probe = agent.probe
        self._supervisor = agent.settings.supervisor
        self._limit_s = agent.settings.engine.stall.serving_s
        self._movement = Movement(self._limit_s)
        self._before: Load | None = None
        self._looked_at_s = self._canary_at_s = time.monotonic()

    async def look(self) -> str | None:
        """Why the engine does not serve; None when it does, or when it is too early to look again."""
        now = time.monotonic()
        if now - self._looked_at_s < ENGINE_LOOK_S - QUIET_TICK_S / 2:
            return None
        self._looked_at_s = now
        load = await self._probe.load()
        before, self._before = self._before, load
        self._agent.engine_load = load.over(before) if load is not None else None
        still = self._movement.feed(load) if load is not None else None
        if still is not None:
            # The running count is refreshed only now and then (sglang 0.5.23): a token decides.
            self._movement = Movement(self._limit_s)
            stuck = await self._probe.canary(self._supervisor.canary_timeout_s)
            return f"{still}, and {stuck}" if stuck is not None else None
        if load is not None and load.moved(before):
            self._canary_at_s = now
        if now - self._canary_at_s < self._supervisor.canary_period_s:
            return None
        self._canary_at_s = now
        return await self._probe.canary(self._supervisor.canary_timeout_s)
