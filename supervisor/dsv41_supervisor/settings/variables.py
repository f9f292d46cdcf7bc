"""What SGLang would make of a variable of the user's. It takes its default for a value that it cannot read, with a
warning among thousands of lines, and nothing at all for a name that it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from .sglang_variables import GONE, NUMBERS, SWITCHES, TEXTS, WHOLE_NUMBERS

TRUE_OR_FALSE = frozenset({"true", "1", "yes", "y", "false", "0", "no", "n"})
"""Source: EnvBool.parse in sglang 0.5.23."""
KNOWN = SWITCHES | WHOLE_NUMBERS | NUMBERS | TEXTS


def misread(environment: Mapping[str, str]) -> list[str]:
    """One sentence for each variable that SGLang would not read as it was meant."""
    problems = []
    for name, value in sorted(environment.items()):
        if not name.startswith("SGLANG_"):
            continue
        if name in GONE:
            problems.append(f"engine.environment.{name} does nothing in the pinned SGLang; take it out")
        elif name not in KNOWN:
            near = get_close_matches(name, KNOWN, n=1, cutoff=0.8)
            meant = f"; did you mean {near[0]}?" if near else ""
            problems.append(f"engine.environment.{name} is no variable of the pinned SGLang{meant}")
        elif (wanted := _wanted(name, value)) is not None:
            problems.append(f"engine.environment.{name} is {value!r}, SGLang reads {wanted} there")
    return problems


def _wanted(name: str, value: str) -> str | None:
    """What the value should be, when it is not that."""
    if name in SWITCHES:
        return None if value.lower() in TRUE_OR_FALSE else "true or false"
    number = int if name in WHOLE_NUMBERS else float if name in NUMBERS else None
    if number is not None:
        try:
            number(value)
        except ValueError:
            return "a whole number" if number is int else "a number"
    return None
