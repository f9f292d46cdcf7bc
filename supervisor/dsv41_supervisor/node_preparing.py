"""Stages 2–4 of one boot on one node, as work that runs beside everything else and can be called off."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .errors import Dsv41Error, Exit, Refusal, Refused, Stage
from .journal import Event, event, fields, log
from .stages import prepare
from .units import PACK_UNIT, UnitState

if TYPE_CHECKING:
    from .node import NodeAgent

PACK_STOP_S = 5
POLL_S = 0.1


@dataclass(slots=True)
class Preparation:
    """How far stages 2–4 of one boot are on this node: what its head and `dsv41 status` show."""

    state: str = "idle"
    boot_id: str | None = None
    stage: str | None = None
    refusals: tuple[Refusal, ...] = ()
    took_s: dict[str, float] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


class NodePreparing:
    """Runs one preparation at a time; a new boot's replaces the one before."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._task: asyncio.Task[None] | None = None
        self.now = Preparation()

    def begin(self, boot_id: str) -> None:
        """Start stages 2–4 for a boot; `now` tells the outcome."""
        self.cancel()
        self.now = Preparation("running", boot_id)
        self._task = asyncio.get_running_loop().create_task(self._prepare(self.now))

    def cancel(self) -> bool:
        """Whether anything ran. The pack unit is not stopped by this: see `call_off`."""
        if self._task is None or self._task.done():
            return False
        self._task.cancel()
        return True

    async def call_off(self) -> None:
        """Stop what runs, the pack unit with it, and forget the boot."""
        was = self.now
        if self.cancel():
            await self._agent.units.stop(PACK_UNIT, PACK_STOP_S)
            if self.now is was:
                self.now = Preparation()

    async def _prepare(self, preparation: Preparation) -> None:
        agent = self._agent

        def entered(stage: Stage) -> None:
            preparation.stage = stage
            agent.changes.bump()

        try:
            with fields(node=agent.node):
                done = await prepare(
                    agent.settings, agent.node, agent.fabric, self._run_pack, entered,
                    (lambda: agent.containers.report(agent.fabric.override)) if agent.containers.used else None,
                )  # fmt: skip
            preparation.took_s = done.took_s
            preparation.rows = {str(layer.layer): layer.n_rows for layer in done.pack.layers}
            await agent.shown.know_bits()
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
                                            "Report it with the supervisor's log.", node=agent.node),)  # fmt: skip
        finally:
            agent.changes.bump()

    async def _run_pack(self) -> None:
        """Run the pack unit to its end. Raises Refused with its last line."""
        agent = self._agent
        await agent.units.start(PACK_UNIT)
        while (status := await agent.units.status(PACK_UNIT)).state in (UnitState.ACTIVE, UnitState.STOPPING):
            await asyncio.sleep(POLL_S)
        if status.state is UnitState.FAILED:
            lines = [line for line in await agent.units.tail(PACK_UNIT, 20) if line.strip()]
            raise Refused(
                [Refusal(Stage.PACK, f"packing failed: {lines[-1] if lines else 'it said nothing'}",
                         f"Run dsv41 logs {agent.node} --unit pack.", node=agent.node, rank=agent.rank_number,
                         transient=status.exit_status == Exit.UNAVAILABLE)]
            )  # fmt: skip
