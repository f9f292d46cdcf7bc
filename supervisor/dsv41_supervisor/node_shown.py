"""What one node shows of itself: its status, its figures, and what must be equal on every rank. Changes nothing."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

from dsv41_adapters.report import read_counters

from . import __version__
from .atomic import read_json
from .errors import Stage
from .fabric.carrier import carrier
from .fleet import bits
from .pack import PROGRESS
from .rank.kv_budget import KvBudget, kv_budget
from .rank.plan import report_dir
from .units import rank_unit
from .units.procfs import memory_available_bytes, rss_bytes

if TYPE_CHECKING:
    from .node import NodeAgent


class NodeShown:
    """The node's face to its head, `dsv41 status`, metrics and bundles."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._bits: dict[str, str] = {}
        self.running_bits: dict[str, str] = {}
        """What the rank's processes really loaded; empty until it was looked at."""

    def status(self) -> dict[str, Any]:
        """Everything about this node that the head and `dsv41 status` show."""
        agent = self._agent
        now = time.monotonic()
        rank, preparation = agent.rank, agent.preparing.now
        progress = read_json(agent.settings.run_dir(agent.node) / PROGRESS) if preparation.stage == Stage.PACK else None
        boot = agent.leases.boot
        return {
            "version": agent.changes.version,
            "node": agent.node,
            "rank_number": agent.rank_number,
            **self.lease_json(),
            "lease_age_s": round(agent.settings.supervisor.lease_ttl_s - agent.leases.left_s(now), 1) if boot else None,
            "prepare": {
                "state": preparation.state,
                "boot": preparation.boot_id,
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
                "sentence": rank.sentence,
                "taken_up": agent.taking_up,
            },
            "waits_for": agent.waits_for,
            "same": self.same_bits(),
            "same_known": bool(self._bits),
            "same_running": self.running_bits,
            "kv": self.kv_budget().to_json(),
            "fabric": agent.fabric.to_json(),
            "memory": {"low_water_bytes": agent.watch.low_water_bytes, "guard": agent.guard.status()},
            "notices": agent.notices.to_json(),
            "rails": {
                name: {"interface": rail.interface, "state": carrier(rail.interface)}
                for name, rail in agent.settings.fleet.nodes[agent.node].rails.items()
            },
            "engine": agent.engine_load,
            "warnings": [*agent.warnings, *filter(None, [agent.lease.unwritten])],
            "supervisor": {"pid": os.getpid(), "rss_bytes": rss_bytes(os.getpid()), "version": __version__},
        }

    def lease_json(self) -> dict[str, Any]:
        """What the head has to know about the lease here; it answers to the stamp."""
        agent = self._agent
        book, now = agent.leases, time.monotonic()
        return {
            "highest_generation": book.highest_generation,
            "boot": book.boot.to_json() if book.boot else None,
            "hold": str(book.hold),
            "stamp": str(book.stamp(now)),
            "lease_left_s": round(book.left_s(now), 1),
        }

    def same_bits(self) -> dict[str, Any]:
        """What must be equal on every rank of a boot; the head compares and names both values."""
        agent = self._agent
        return self._bits or {"supervisor version": __version__, "settings hash": agent.settings.hash}

    async def know_bits(self) -> None:
        """Reads whole libraries and file lists the first time: in a thread."""
        agent = self._agent
        self._bits = await asyncio.to_thread(bits.planned, agent.settings, agent.node)
        agent.changes.bump()

    async def runs_as_planned(self) -> str | None:
        """Look at what the rank's processes really loaded. Why this rank must not serve; None when it may."""
        agent = self._agent
        members = (await agent.units.status(rank_unit(agent.rank_number))).members
        self.running_bits, wrong = await asyncio.to_thread(bits.running, agent.settings, members, agent.rank.armed)
        return wrong

    def kv_budget(self) -> KvBudget:
        """The KV pin asked for and granted, as far as this rank has said it."""
        agent = self._agent
        asked = agent.settings.engine.memory.max_total_tokens
        return kv_budget(asked, agent.rank.memory_line, agent.rank.max_total_tokens)

    async def measure(self) -> dict[str, Any]:
        """Figures that change all the time: memory of the rank's processes, counters of the adapters."""
        agent = self._agent
        status = await agent.units.status(rank_unit(agent.rank_number))
        boot = agent.leases.boot
        counters = read_counters(report_dir(agent.settings, agent.node), boot.id) if boot else {}
        return {
            "unit": str(status.state),
            "n_processes": len(status.members),
            "rank_rss_bytes": sum(rss_bytes(pid) for pid in status.members),
            "counters": counters,
            "memory_available_bytes": memory_available_bytes(),
        }
