"""One table a node, worst first: what, where and what to do next. And the same as JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from ..checks import Check, Finding, Severity
from ..errors import Exit
from ..settings import Settings

if TYPE_CHECKING:
    # `--list` asks nobody.
    from .ask import Asked
    from .fleet_facts import DeepFacts

_SHOWN = (Severity.REFUSAL, Severity.WARNING, Severity.NOTE)
_COLOURS = {Severity.REFUSAL: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
LEAST_WIDTH = 110
FLEET_KEY = "fleet-key"
"""The check whose refusal no later try mends: this command is misconfigured."""
NOT_APPLICABLE = "not applicable"
"""How the sentence of a check begins that has nothing to look at in a fleet like this."""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of one visit."""

    settings: Settings
    asked: Asked
    findings: tuple[Finding, ...]
    deep: Mapping[str, DeepFacts] | None
    took_s: float

    @property
    def verdict(self) -> str:
        if any(finding.refuses for finding in self.findings) or not self.asked.host:
            return "refused"
        bad = any(f.severity in (Severity.REFUSAL, Severity.WARNING) for f in self.findings)
        return "warnings" if bad else "good"

    @property
    def exit_status(self) -> Exit:
        """0 good, 1 warnings, 69 refused, or nothing was looked at; 78 when the fleet key is wrong."""
        if any(finding.refuses and finding.check == FLEET_KEY for finding in self.findings):
            return Exit.REFUSED
        return {"good": Exit.OK, "warnings": Exit.WARNINGS, "refused": Exit.UNAVAILABLE}[self.verdict]

    def of(self, node: str | None) -> list[Finding]:
        """A node's findings, worst first; of None those that no node is to blame for."""
        return [finding for finding in self.findings if finding.node == node]

    @property
    def worst_first(self) -> list[str]:
        def badness(node: str) -> tuple[int, int, int]:
            found = [f.severity for f in self.of(node)]
            rank = self.settings.fleet.nodes[node].rank
            return -found.count(Severity.REFUSAL), -found.count(Severity.WARNING), rank

        return sorted(self.settings.fleet.nodes, key=badness)

    def to_json(self) -> dict[str, Any]:
        nodes = {
            node: {
                "rank": self.settings.fleet.nodes[node].rank,
                "answered": node in self.asked.supervised,
                "looked_at": node in self.asked.host,
                "answer_s": self.asked.answers[node].took_s if node in self.asked.answers else None,
                "clock_offset_s": self.asked.answers[node].offset_s if node in self.asked.answers else None,
                "clock_offset_error_s": self.asked.answers[node].offset_error_s if node in self.asked.answers else None,
                "findings": [finding.to_json() for finding in self.of(node)],
            }
            for node in self.worst_first
        }
        return {
            "fleet": self.settings.fleet.name,
            "verdict": self.verdict,
            "took_s": round(self.took_s, 3),
            "nodes": nodes,
            "findings": [finding.to_json() for finding in self.of(None)],
            "deep": {n: facts.model_dump(mode="json") for n, facts in self.deep.items()} if self.deep else None,
        }


def show(report: Report, out: TextIO) -> None:
    """The tables. Narrow terminals get long lines rather than words cut in two."""
    with _printing(out) as console:
        _show(report, console)


@contextlib.contextmanager
def _printing(out: TextIO) -> Iterator[Any]:
    """A console whose text is written at the end: rich ends the program with 1 where nobody reads any more, and that
    status means warnings. Lines end where their words do."""
    from rich.console import Console

    console = Console(file=out, highlight=False, soft_wrap=False)
    console.width = max(console.width, LEAST_WIDTH)
    with console.capture() as captured:
        yield console
    out.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))
    out.flush()


def _show(report: Report, console: Any) -> None:
    if report.asked.alone:
        looked = f"only {report.asked.read_here} was looked at, by this command itself" if report.asked.read_here else (
            "nothing could be looked at; name this node with --node"
        )  # fmt: skip
        answers = report.asked.answers.values()
        why = "No supervisor answered"
        if any(answer.wrong_key for answer in answers):
            why = "No supervisor takes this fleet key"
        elif any(answer.unasked for answer in answers):
            why = "No supervisor was asked"
        console.print(f"{why}: {looked}.", markup=False)
    for node in report.worst_first:
        _show_node(console, report, node)
    of_all = [finding for finding in report.of(None) if finding.severity in _SHOWN]
    if of_all:
        console.print("\nthe fleet", style="bold")
        _show_findings(console, of_all)
    _show_deep(console, report)
    _show_skipped(console, report)
    n = {severity: sum(f.severity is severity for f in report.findings) for severity in _SHOWN}
    console.print(
        f"\nfleet {report.settings.fleet.name}: {report.verdict}; {_counted(n[Severity.REFUSAL], 'refusal')}, "
        f"{_counted(n[Severity.WARNING], 'warning')}; {report.took_s:.2f} s",
        style="bold",
    )


def _show_node(console: Any, report: Report, node: str) -> None:
    found = [f for f in report.of(node) if f.severity in _SHOWN]
    rank = report.settings.fleet.nodes[node].rank
    looked = node in report.asked.host
    state = "" if found else ": good" if looked else ": not looked at"
    console.print(f"\n{node} (rank {rank}){state}", style="bold")
    _show_findings(console, found)


def _show_findings(console: Any, findings: Sequence[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    found = [f for f in findings if f.severity in _SHOWN]
    if not found:
        return
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in found:
        severity = "overridden" if finding.overridden else str(finding.severity)
        where = f" ({finding.where})" if finding.where and finding.where not in finding.what else ""
        table.add_row(
            Text("  " + severity, style=_COLOURS[finding.severity]),
            Text(finding.check),
            Text(f"{finding.what}{where}\n-> {finding.do_next}"),
        )
    console.print(table)


def _show_deep(console: Any, report: Report) -> None:
    """What the traffic measured, good or bad: one line a rail and direction."""
    if not report.deep:
        return
    lines: dict[tuple[str, str, str], list[str]] = {}
    units = {"warm-up": "ms", "mtu-ping": "ms", "tcp-echo": "MB/s", "rdma-write": "Gb/s"}
    for facts in report.deep.values():
        for one in facts.traffic:
            figure = f" {one.figure:.3g} {units[one.test]}" if one.figure is not None else ""
            said = "not run" if one.skipped else "failed" if one.problem else f"passed{figure}"
            lines.setdefault((one.rail, one.source, one.target), []).append(f"{one.test} {said}")
    if lines:
        console.print("\ntraffic", style="bold")
    for (rail, source, target), said in sorted(lines.items()):
        console.print(f"  rail {rail}, {source} to {target}: {', '.join(said)}", markup=False)
    for node, facts in report.deep.items():
        for ran in facts.ran:
            if ran.problem is None and ran.skipped is None:
                unit = "ms an all-reduce" if ran.test == "collective" else "MHz under load"
                over = f" over {', '.join(ran.transport)}" if ran.transport else ""
                console.print(f"  {ran.test} on {node}: {ran.figure:.3g} {unit}{over}", markup=False)


def _show_skipped(console: Any, report: Report) -> None:
    """What was not looked at, by reason; what does not apply to this fleet is only counted."""
    groups: dict[tuple[str, str], list[str]] = {}
    inapplicable: set[str] = set()
    for what, found in _by_sentence(report.findings).items():
        if what.startswith(NOT_APPLICABLE):
            inapplicable |= {f.check for f in found}
            continue
        nodes = ", ".join(node for node in report.settings.fleet.in_rank_order if node in {f.node for f in found})
        groups.setdefault((what, nodes), []).extend(dict.fromkeys(f.check for f in found))
    if groups or inapplicable:
        console.print("\nnot looked at", style="bold")
    for (what, nodes), checks in groups.items():
        console.print(f"  {', '.join(checks)}: {what}{f' ({nodes})' if nodes else ''}", markup=False)
    if inapplicable:
        console.print(
            f"  not applicable to this fleet: {_counted(len(inapplicable), 'check')} (--json says why)", markup=False
        )


def _by_sentence(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.severity is Severity.SKIPPED:
            groups.setdefault(finding.what, []).append(finding)
    return groups


def _counted(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def show_list(checks: Sequence[Check], out: TextIO) -> None:
    """Every check that there is."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("id", "stage", "severity"):
        table.add_column(column, no_wrap=True)
    table.add_column("what", overflow="fold")
    for each in checks:
        table.add_row(each.id, each.stage, Text(each.severity), Text(f"{each.what} ({each.source})"))
    with _printing(out) as console:
        console.print(table)
