"""The doctor's part inside a supervisor: this node's facts for whoever asks with the fleet's key, and deep tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from ..fabric.bounded import BoundedReads
from ..fabric.facts import NodeFacts
from ..fabric.read import read_facts
from .collect import READ_S, Standing, asked_and_read, fabric_within, read_host, with_container
from .deep.serve import DeepServer

if TYPE_CHECKING:
    from ..node import NodeAgent

MAX_BOUND_S = 60.0


class DoctorService:
    """Lives in the supervisor's event loop."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._reads = BoundedReads()
        self.deep = DeepServer(
            agent.settings, agent.node, agent.units, lambda: str(agent.rank.state), agent.fabric.for_launch
        )

    async def on_cleanup(self, app: web.Application) -> None:
        """The supervisor ends: every door that a test opened is closed."""
        self.deep.close()

    async def facts(self, bound_s: float = READ_S) -> dict[str, Any]:
        """Host and fabric of this node, within about `bound_s`."""
        from ..units import rank_unit

        agent = self._agent
        bound_s = min(max(bound_s, 0.1), MAX_BOUND_S)
        status = await agent.units.status(rank_unit(agent.rank_number))
        standing = Standing(
            supervised=True, rank_state=str(agent.rank.state), pids=(os.getpid(), *status.members),
            same=agent.shown.same_bits(), fabric_changes=tuple(map(str, agent.fabric.watch.changes)),
        )  # fmt: skip

        def read(one_s: float) -> Awaitable[NodeFacts]:
            return read_facts(
                agent.settings, agent.node, None, status.members, one_s, self._reads, agent.fabric.ruleset
            )

        host, fabric = await asyncio.gather(
            with_container(
                bound_s, agent.containers.look if agent.containers.used else None,
                read_host(agent.settings, agent.node, standing, self._reads, bound_s),
            ),
            fabric_within(bound_s, asked_and_read(agent.settings, agent.node, bound_s, read)),
        )  # fmt: skip
        return {"host": host.model_dump(mode="json"), "fabric": fabric}
