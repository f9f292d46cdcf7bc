"""The boot on one screen. READ THIS FIRST.

Data moves one way: config → fabric → share → pack → rank → engine → gateway. Each stage takes frozen values and
returns one, or a list of refusals; all refusals of a stage are shown together. `prepare` runs stages 2–4 on one node
(stage 1, config, was done when the Settings were read). Stage 5 turns their reports into a LaunchPlan
(`rank/plan.py`), stage 6 is the engine proving that it is armed and answers (`rank/health.py`), and stage 7 hands
that readiness to users (`gateway/`). `fleet/controller.py` runs 2–6 on every node, workers first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .deadline import Deadline
from .errors import Refused, Stage
from .fabric.agent import NodeFabric
from .fabric.check import FabricReport
from .journal import Event, event, fields
from .pack import PackManifest, check_rows
from .settings import Settings
from .share import ShareReport, check_checkpoint

FACTS_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Prepared:
    """Reports of stages 2–4 of one node; what stage 5 starts from."""

    fabric: FabricReport
    share: ShareReport
    pack: PackManifest
    took_s: dict[str, float]


async def prepare(
    settings: Settings,
    node: str,
    fabric_of_node: NodeFabric,
    pack_rows: Callable[[], Awaitable[None]],
    entered: Callable[[Stage], None],
    look_at_container: Callable[[], Awaitable[object]] | None = None,
) -> Prepared:
    """Stages 2–4 on one node. `pack_rows` runs the pack unit; `entered` hears of each stage as it begins. Where the
    engine is an image, what its container needs is looked at before the rows are packed, which takes minutes.

    Raises Refused with all reasons of the first stage that does not pass.
    """
    took_s: dict[str, float] = {}

    async def stage(which: Stage, work: Awaitable[object]) -> object:
        entered(which)
        began = time.monotonic()
        with fields(stage=which):
            report = await work
        took_s[which] = round(time.monotonic() - began, 3)
        if report.refusals:  # type: ignore[attr-defined]
            raise Refused(report.refusals)  # type: ignore[attr-defined]
        event(Event.STAGE_DONE, f"stage {which} passed", stage=which, took_ms=round(took_s[which] * 1000))
        return report

    fabric = await stage(Stage.FABRIC, fabric_of_node.check())
    share = await stage(Stage.SHARE, _in_thread(check_checkpoint, settings, node, "the checkpoint's headers"))
    if look_at_container is not None:
        await stage(Stage.ENGINE, look_at_container())
    pack = await stage(Stage.PACK, _pack(settings, node, pack_rows))
    return Prepared(fabric, share, pack, took_s)  # type: ignore[arg-type]


async def _pack(settings: Settings, node: str, pack_rows: Callable[[], Awaitable[None]]) -> PackManifest:
    manifest = await _in_thread(check_rows, settings, node, "the headers of the packed rows")
    if manifest.to_pack and not manifest.refusals:
        await pack_rows()
        manifest = await _in_thread(check_rows, settings, node, "the headers of the packed rows")
    return manifest


async def _in_thread(work, settings: Settings, node: str, waiting_for: str):  # type: ignore[no-untyped-def]
    """Blocking file reads, bounded: a dead NFS server must not hold the supervisor."""
    deadline = Deadline.after(FACTS_TIMEOUT_S, waiting_for, stage=Stage.SHARE, hint="Check the mount on that node.")
    return await deadline.wait(asyncio.to_thread(work, settings, node))
