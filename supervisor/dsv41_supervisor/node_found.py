"""What guard and rails tell about this node, and what follows: the rank is killed, people are told."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .errors import Stage
from .guard.link import Message, kill_sentence
from .journal import Event, event
from .rank.record import ENDED
from .rank.state import RankState
from .units import rank_unit
from .units.procfs import start_time

if TYPE_CHECKING:
    from .node import NodeAgent


class NodeFound:
    """Hears of memory and rails from those who watch them."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._was_degraded = False

    async def guard_rank(self, boot_id: str) -> None:
        """From its first second on: the guard kills this rank when memory runs out."""
        agent = self._agent
        unit = rank_unit(agent.rank_number)
        pid = (await agent.units.status(unit)).main_pid
        ticks = start_time(pid) if pid is not None else None
        if pid is not None and ticks is not None:
            agent.guard.watch(f"{unit}.service", agent.rank_number, boot_id, pid, ticks)

    def guard_said(self, message: Message) -> None:
        """The guard killed the rank, or saw something that a person should know."""
        agent = self._agent
        what = message["what"]
        if what == "hello" and message.get("last_kill"):
            what, message = "killed-whom", message["last_kill"]
        if what in ("killed", "killed-whom"):
            boot = agent.leases.boot
            if boot is not None and message["boot"] == boot.id and agent.rank.state not in (RankState.ABSENT, *ENDED):
                agent.fail(kill_sentence(message))
            if agent.notices.add("memory-kill", kill_sentence(message), subject=message["boot"]):
                event(Event.MEMORY_FLOOR, kill_sentence(message), logging.ERROR, stage=Stage.RANK)
        elif what in ("warning", "fact"):
            kind = Event.GPU_NO_MEMORY if message["kind"] == "gpu-no-memory" else Event.MEMORY_LOW
            # A driver that is out of memory says so hundreds of times: the first is told, the count is in the status.
            if message.get("first", True) and agent.notices.add(message["kind"], message["sentence"]):
                event(kind, message["sentence"], logging.WARNING, stage=Stage.RANK)
                agent.warn(message["sentence"])
        agent.changes.bump()

    def rails_changed(self) -> None:
        """The rails are not as they were at launch, or are again."""
        agent = self._agent
        if agent.fabric.watch.degraded:
            self._was_degraded = True
            agent.notices.add("fabric-degraded", "; ".join(map(str, agent.fabric.watch.changes)))
        elif self._was_degraded:
            self._was_degraded = False
            agent.notices.add("fabric-restored", "the rails are as they were at launch again")
        agent.changes.bump()

    def guard_is_missing(self, for_s: float) -> None:
        """A rank runs and nobody guards its memory but this supervisor."""
        agent = self._agent
        sentence = f"the memory guard has not answered for {for_s:.0f} s while rank {agent.rank_number} runs"
        if agent.notices.add("guard-missing", sentence, subject=agent.leases.boot.id if agent.leases.boot else ""):
            event(Event.GUARD_MISSING, sentence, logging.ERROR, stage=Stage.RANK)

    async def memory_below_floor(self, available_bytes: int) -> None:
        """Kill the rank now: an out-of-memory GB10 needs its power cord pulled. Only when the guard cannot."""
        agent = self._agent
        floor = agent.settings.guard.floor_bytes
        sentence = (
            f"MemAvailable is {available_bytes / 2**30:.2f} GiB, below the floor of {floor / 2**30:.2f} GiB: "
            f"killing rank {agent.rank_number}"
        )
        event(Event.MEMORY_FLOOR, sentence, logging.ERROR, stage=Stage.RANK)
        agent.fail(sentence)
        await agent.units.stop(rank_unit(agent.rank_number), 0)
