"""What the public recipes name, from `adapters/RECIPES.tsv`, and the names that STATUS.md's table has rows for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ADAPTERS = Path(__file__).resolve().parents[2] / "adapters"


@dataclass(frozen=True)
class Named:
    """One line of the list."""

    kind: str
    name: str
    value: str
    place: str
    differs: str

    @property
    def setting(self) -> str | None:
        """Dotted path of its setting, with * for the name of a node or rail."""
        return self.place.removeprefix("setting ") if self.place.startswith("setting ") else None


def recipes() -> list[Named]:
    lines = (ADAPTERS / "RECIPES.tsv").read_text().splitlines()
    return [Named(*line.split("\t"), *[""] * (4 - line.count("\t"))) for line in lines if not line.startswith("#")]


def rebuilt_argv(named: list[Named]) -> list[str]:
    """The launch line of the four-Spark recipe, in its own order."""
    return [part for entry in named if entry.kind == "argv" for part in (entry.name, entry.value) if part]


def status_names() -> set[str]:
    """Everything in backticks in the first column of STATUS.md's table of the recipes' pieces."""
    text = (ADAPTERS / "STATUS.md").read_text()
    table = text.partition("## The recipes' pieces")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")][2:]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def status_standings() -> dict[str, str]:
    """Standing by adapter, as STATUS.md's table of ours says it."""
    table = (ADAPTERS / "STATUS.md").read_text().partition("## Ours")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)] for row in rows]
    column = cells[0].index("standing")
    return {row[1].strip("`"): row[column] for row in cells[2:]}
