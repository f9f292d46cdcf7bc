"""Stage 2 of 7: config → FABRIC → share. Takes Settings and what was seen, gives FabricReport. Pure, no I/O.

A node judges itself before its rank starts; the head judges all nodes together, because a cable has two ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..checks import FABRIC, Finding, Severity, run
from ..errors import Refusal
from ..settings import Settings
from .facts import NodeFacts


@dataclass(frozen=True, slots=True)
class FabricReport:
    """What the fabric looks like. No refusals: ranks may start; `findings` may hold warnings all the same."""

    n_rails: int
    refusals: tuple[Refusal, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def overridden(self) -> tuple[Finding, ...]:
        """Refusals that somebody allowed by name."""
        return tuple(f for f in self.findings if f.overridden)

    @property
    def told(self) -> tuple[Finding, ...]:
        """What a person should see in status: refusals, overridden ones and warnings."""
        return tuple(f for f in self.findings if f.severity in (Severity.REFUSAL, Severity.WARNING))


def check_fabric(settings: Settings, facts: Mapping[str, NodeFacts], override: Iterable[str] = ()) -> FabricReport:
    """Every fabric check over the nodes whose facts are there: one node, or the fleet."""
    findings = run({FABRIC: facts}, settings, override)
    nodes = settings.fleet.nodes
    return FabricReport(
        n_rails=sum(len(nodes[node].rails) for node in facts),
        refusals=tuple(f.refusal(nodes[f.node].rank if f.node in nodes else None) for f in findings if f.refuses),
        findings=findings,
    )
