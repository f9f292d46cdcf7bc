"""One node's containers, where its engine is an image: asked for by the boot, the stop and the doctor.

Without `engine.container` nothing of this is loaded or done: podman and its facts cost every supervisor memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .settings import Settings
from .units import Units

if TYPE_CHECKING:
    from .doctor.facts import ContainerFacts
    from .rank.container_report import ContainerReport


class NodeContainers:
    """Lives in the supervisor's event loop."""

    def __init__(self, settings: Settings, node: str, units: Units) -> None:
        self._settings, self._node = settings, node
        self.used = settings.engine.container is not None
        if self.used:
            from .rank.container_look import look_of

            self._look = look_of(settings, node, units)

    async def look(self) -> ContainerFacts:
        """What podman says now. Never raises; only where `used`."""
        return await self._look()

    async def report(self, override: tuple[str, ...]) -> ContainerReport:
        """Whether a rank could run; for its boot."""
        from .rank.container_report import check_container

        return check_container(self._settings, self._node, await self.look(), override)

    async def left(self) -> list[str]:
        """Containers that are still there though their rank is gone; after a stop."""
        if not self.used:
            return []
        from .rank.container_report import what_is_left

        return await what_is_left(self._settings, self._node, self._look)
