"""What a machine has for a rank in a container: podman, the image, the GPU's device, leftovers. Looks; see `containers`
for removing.

Under systemd the supervisor is not root and cannot ask root's podman, whose containers a rank's are: a unit of its own
(dsv41-container) does, and leaves the answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..atomic import read_json
from ..doctor.facts import MAX_ROWS, ContainerFacts
from ..errors import Dsv41Error
from ..settings import Device, Settings, UnitBackend
from ..units import Units, UnitState
from .cdi import cdi_devices
from .container import CONTAINER_UNIT, RDMA_DEVICES, node_label, read_only
from .containers import LOOK_S, PodmanFailed, containers_of, podman

ANSWER = Path("/run/dsv41-container/look.json")
"""In a directory of root's: in the run directory, the engine's user could have root write somewhere else."""
ENDS_S = 20.0
_POLL_S = 0.05

Look = Callable[[], Awaitable[ContainerFacts]]


async def look(settings: Settings, node: str) -> ContainerFacts:
    """By this process itself. What podman does not say is told in `problem`; never raises."""
    container = settings.engine.container
    assert container is not None
    found: dict[str, Any] = {"missing": await asyncio.to_thread(_missing, settings, node)}
    if settings.engine.device is Device.CUDA:
        devices, unread = await asyncio.to_thread(cdi_devices)
        found |= {"devices": devices[:MAX_ROWS], "unread_specs": tuple(why[:300] for why in unread[:8])}
    try:
        said = await podman([container.podman, "--version"], LOOK_S)
        found["version"] = (said or "").strip().rpartition(" ")[2][:64]
        present = await podman([container.podman, "image", "exists", container.image], LOOK_S, says_no=1)
        found["image"] = present is not None
        ours = await containers_of(container.podman, node_label(settings, node))
        found["left"] = tuple(f"{c.name} ({c.state})"[:300] for c in ours if c.left)[:MAX_ROWS]
    except PodmanFailed as error:
        found["problem"] = str(error)[:300]
    return ContainerFacts(**found)


class UnitLook:
    """Asks the unit; one question at a time. Never raises."""

    def __init__(self, units: Units, answer: Path = ANSWER) -> None:
        self._units, self._answer = units, answer
        self._asking = asyncio.Lock()

    async def __call__(self) -> ContainerFacts:
        async with self._asking:
            before = _stamp(self._answer)
            try:
                async with asyncio.timeout(ENDS_S):
                    await self._units.start(CONTAINER_UNIT)
                    while (await self._units.status(CONTAINER_UNIT)).state in (UnitState.ACTIVE, UnitState.STOPPING):
                        await asyncio.sleep(_POLL_S)
            except TimeoutError:
                return ContainerFacts(problem=f"the unit {CONTAINER_UNIT} did not end within {ENDS_S:g} s")
            except Dsv41Error as error:
                return ContainerFacts(problem=f"the unit {CONTAINER_UNIT} failed: {error.refusals[0].what}"[:300])
            if _stamp(self._answer) == before or (raw := read_json(self._answer)) is None:
                why = f"the unit {CONTAINER_UNIT} left no answer: journalctl -u {CONTAINER_UNIT}"
                return ContainerFacts(problem=why)
            try:
                return ContainerFacts.model_validate(raw)
            except ValidationError:
                return ContainerFacts(problem=f"{self._answer} is no answer of this version's {CONTAINER_UNIT}")


def look_of(settings: Settings, node: str, units: Units) -> Look:
    """How this node's supervisor asks."""
    if settings.supervisor.units is UnitBackend.SYSTEMD:
        return UnitLook(units)
    return lambda: look(settings, node)


def _missing(settings: Settings, node: str) -> tuple[str, ...]:
    """Paths that podman would be told to mount and that are not there; of the checkpoint and the rows others tell."""
    checked = {str(settings.checkpoint_dir(node)), str(settings.rows_dir(node))}
    paths = [path for path in read_only(settings, node) if path not in checked]
    if any(rail.rdma_device is not None for rail in settings.fleet.nodes[node].rails.values()):
        paths.append(RDMA_DEVICES)
    return tuple(path for path in paths if not os.path.exists(path))[:MAX_ROWS]


def _stamp(path: Path) -> tuple[int, int] | None:
    """Names one answer: another one is another file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns
