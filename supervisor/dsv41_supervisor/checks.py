"""Checks: what can be wrong with a fleet, in one table. A check is pure: facts of nodes and Settings in, findings out.

Every check says what it looks at, how much it matters and where that is known from. Whoever reads facts (the boot of
a fleet, `dsv41 doctor`) hands them to `run`, which knows nothing about fabrics or hosts. A check gets the facts of the
nodes that could be asked: one node alone (its own boot) or all of them (the head, the doctor), and compares those.

    @check("rail-mtu", kind=FABRIC, severity=Severity.REFUSAL, what="…", source="users F6")
    def _mtu(fleet: Mapping[str, NodeFacts], settings: Settings) -> Iterator[Found]:
        yield Found("spark1", "rail a has MTU 1500, expected 9000.", "Run ip link set …", rail="a")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import Refusal, Stage
from .journal import log

if TYPE_CHECKING:
    from .settings import Settings

FABRIC = "fabric"
HOST = "host"
CONTAINER = "container"
_MODULES = (
    "dsv41_supervisor.fabric.checks",
    "dsv41_supervisor.doctor.host_checks",
    "dsv41_supervisor.doctor.container_checks",
    "dsv41_supervisor.doctor.fleet_checks",
)
"""Modules that register checks when they are imported."""


class Severity(StrEnum):
    """How much a finding matters, worst first."""

    REFUSAL = "refusal"
    """The fleet does not start like this, unless this check is overridden by name."""
    WARNING = "warning"
    """It starts, and serves worse than it was asked to or than it could."""
    NOTE = "note"
    """Worth knowing; nothing to do."""
    SKIPPED = "skipped"
    """Could not be looked at, or does not apply here; the sentence says why."""

    @property
    def order(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Found:
    """One thing a check saw. `what` names the place (rail, interface, file) and, with two values, got and expected.

    `severity` None means the check's own. `transient`: trying again later can help.
    """

    node: str | None
    what: str
    do_next: str
    rail: str | None = None
    where: str | None = None
    severity: Severity | None = None
    transient: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A `Found` with the check that saw it. `overridden`: a refusal that somebody allowed by name."""

    check: str
    stage: Stage
    severity: Severity
    node: str | None
    rail: str | None
    what: str
    where: str | None
    do_next: str
    transient: bool = False
    overridden: bool = False

    @property
    def refuses(self) -> bool:
        return self.severity is Severity.REFUSAL and not self.overridden

    def refusal(self, rank: int | None = None) -> Refusal:
        return Refusal(
            self.stage, self.what, self.do_next, node=self.node, rank=rank, transient=self.transient, check=self.check
        )

    def __str__(self) -> str:
        return f"{self.node + ': ' if self.node else ''}{self.what} {self.do_next} [{self.check}]"

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check, "stage": str(self.stage), "severity": str(self.severity), "node": self.node,
            "rail": self.rail, "what": self.what, "where": self.where, "do_next": self.do_next,
            "transient": self.transient, "overridden": self.overridden,
        }  # fmt: skip

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Finding:
        return cls(**{**raw, "stage": Stage(raw["stage"]), "severity": Severity(raw["severity"])})


Look = Callable[[Mapping[str, Any], "Settings"], Iterable[Found]]
"""Facts of one kind by node, and Settings, to what was found. Empty: all is well."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table. `kind` names the facts it reads; `source` is where the pain is known from."""

    id: str
    stage: Stage
    severity: Severity
    what: str
    source: str
    kind: str
    look: Look

    def to_json(self) -> dict[str, str]:
        return {
            "id": self.id, "stage": str(self.stage), "severity": str(self.severity), "what": self.what,
            "source": self.source,
        }  # fmt: skip


_TABLE: dict[str, Check] = {}


def check(
    id: str, *, kind: str, severity: Severity, what: str, source: str, stage: Stage = Stage.FABRIC
) -> Callable[[Look], Look]:
    """Register a function as a check. An id names one check only, for ever: people write it into settings."""

    def register(look: Look) -> Look:
        if id in _TABLE:
            raise ValueError(f"two checks are called {id}")
        _TABLE[id] = Check(id, stage, severity, what, source, kind, look)
        return look

    return register


def all_checks() -> tuple[Check, ...]:
    """The whole table, in stage order and as registered."""
    for name in _MODULES:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    stages = list(Stage)
    return tuple(sorted(_TABLE.values(), key=lambda c: stages.index(c.stage)))


def unknown_ids(ids: Iterable[str]) -> list[str]:
    """Names in `ids` that no check has, in order."""
    known = {c.id for c in all_checks()}
    return [name for name in ids if name not in known]


def run(
    facts: Mapping[str, Mapping[str, Any]], settings: Settings, override: Iterable[str] = ()
) -> tuple[Finding, ...]:
    """Every check whose kind of facts is given, worst findings first. `facts`: kind, then node.

    A check that breaks is a finding itself: one wrong fact must not hide what the others see.
    """
    allowed = {*override, *settings.checks.override}
    findings: list[Finding] = []
    for each in all_checks():
        if each.kind in facts:
            findings += _findings(each, facts[each.kind], settings, each.id in allowed)
    return tuple(sorted(findings, key=lambda f: (f.severity.order, f.overridden)))


def _findings(each: Check, facts: Mapping[str, Any], settings: Settings, allowed: bool) -> Iterator[Finding]:
    try:
        found = list(each.look(facts, settings))
    except Exception as error:
        log.exception("check %s broke", each.id)
        found = [Found(None, f"the check {each.id} broke: {error!r}.", "Report it: it is a bug.",
                       severity=Severity.WARNING)]  # fmt: skip
    for one in found:
        severity = one.severity or each.severity
        yield Finding(
            each.id, each.stage, severity, one.node, one.rail, one.what, one.where, one.do_next, one.transient,
            overridden=allowed and severity is Severity.REFUSAL,
        )  # fmt: skip
