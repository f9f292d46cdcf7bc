"""Which ends of which rails can reach each other directly. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...settings import Settings


@dataclass(frozen=True, slots=True)
class Path:
    """One direction of one rail: from an address of one node to an address of another."""

    rail: str
    source: str
    target: str
    source_address: str
    target_address: str

    @property
    def name(self) -> str:
        return f"rail {self.rail}, {self.source} to {self.target}"


def rail_paths(settings: Settings, nodes: Iterable[str] | None = None) -> list[Path]:
    """Every direction of every cable; with a switch, every ordered pair on each rail. Only between `nodes`."""
    wanted = set(settings.fleet.nodes if nodes is None else nodes)
    paths = []
    for source in settings.fleet.in_rank_order:
        for name, rail in settings.fleet.nodes[source].rails.items():
            for target in settings.fleet.in_rank_order if rail.peer is None else [rail.peer]:
                there = settings.fleet.nodes[target].rails.get(name)
                if target == source or there is None or not {source, target} <= wanted:
                    continue
                paths.append(Path(name, source, target, str(rail.address.ip), str(there.address.ip)))
    return paths
