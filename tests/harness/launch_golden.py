"""Golden launch plans as text that a person can read: an option with its value a line, then the environment."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from dsv41_supervisor.rank.plan import LaunchPlan

DIRECTORY = Path(__file__).resolve().parents[1] / "fixtures" / "launch"
PROFILES = ("tp3", "tp4")


def golden_file(profile: str, rank: int) -> Path:
    return DIRECTORY / f"{profile}-rank{rank}.plan"


def write_plan(plan: LaunchPlan) -> str:
    lines = [shlex.join(group) for group in _options(plan.argv)]
    return "\n".join([*lines, "", *(f"{name}={value}" for name, value in sorted(plan.environment.items())), ""])


def read_plan(text: str) -> tuple[list[str], dict[str, str]]:
    """argv and environment of a golden file."""
    argv, _, environment = text.partition("\n\n")
    pairs = (line.partition("=") for line in environment.splitlines())
    return shlex.split(argv), {name: value for name, _, value in pairs}


def _options(argv: tuple[str, ...]) -> Iterator[list[str]]:
    """The command, then each option with what belongs to it."""
    group: list[str] = []
    for argument in argv:
        if argument.startswith("--"):
            yield group
            group = []
        group.append(argument)
    yield group
