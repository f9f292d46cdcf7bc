"""Whether a rank's container could run on this node, judged before a boot; and whether one is left after a stop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..checks import CONTAINER, Finding, run
from ..doctor.facts import ContainerFacts
from ..errors import Dsv41Error, Refusal
from ..journal import log
from ..settings import Settings, UnitBackend
from .container import node_label
from .container_look import Look
from .containers import remove_left


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """No refusals: podman, image, device and mounts are there."""

    refusals: tuple[Refusal, ...]
    findings: tuple[Finding, ...] = ()


def check_container(
    settings: Settings, node: str, facts: ContainerFacts, override: Iterable[str] = ()
) -> ContainerReport:
    """Everything that is wrong, together. Pure."""
    findings = run({CONTAINER: {node: facts}}, settings, override)
    rank = settings.fleet.nodes[node].rank
    return ContainerReport(tuple(f.refusal(rank) for f in findings if f.refuses), findings)


async def what_is_left(settings: Settings, node: str, look: Look) -> list[str]:
    """Containers whose rank is gone and that cannot be removed. Under systemd the unit that looks does
    that first, as root."""
    container = settings.engine.container
    assert container is not None
    if settings.supervisor.units is not UnitBackend.SYSTEMD:
        try:
            for name in await remove_left(container.podman, node_label(settings, node)):
                log.warning("removed the container %s, whose rank was gone", name)
        except Dsv41Error as error:
            log.warning("%s", error)
    facts = await look()
    if facts.problem is not None:
        # Nobody can say what is left; that is said, and no reason to call a stop failed.
        log.warning("whether a container is left cannot be seen: %s", facts.problem)
    return list(facts.left)
