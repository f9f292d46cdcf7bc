"""A strict reader of Prometheus text (exposition format 0.0.4): anything the format does not allow is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_METRIC = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(rf"({_METRIC})(?:\{{(.*)\}})? (\S+)( -?\d+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
_UNESCAPE = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
KINDS = ("counter", "gauge", "histogram", "summary", "untyped")


@dataclass
class Family:
    """One metric: its kind, its help, its samples in order."""

    kind: str
    help_text: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)


def parse(text: str) -> dict[str, Family]:
    """Every family by name. Raises ValueError with the line that is wrong."""
    if not text.endswith("\n"):
        raise ValueError("the last line does not end")
    families: dict[str, Family] = {}
    helps: dict[str, str] = {}
    open_name: str | None = None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, help_text = line.split(" ", 3)
            if name in helps:
                raise ValueError(f"a second HELP: {line}")
            helps[name] = help_text
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            if name in families or kind not in KINDS or name not in helps:
                raise ValueError(f"TYPE is repeated, unknown or without HELP: {line}")
            families[name] = Family(kind, helps[name])
            open_name = name
        else:
            name, labels, value = _sample(line)
            if name != open_name:
                raise ValueError(f"a sample apart from its family: {line}")
            family = families[name]
            if labels in [have for have, _ in family.samples]:
                raise ValueError(f"the same sample twice: {line}")
            if family.kind == "counter" and (not name.endswith("_total") or value < 0):
                raise ValueError(f"not a counter: {line}")
            family.samples.append((labels, value))
    return families


def _sample(line: str) -> tuple[str, dict[str, str], float]:
    match = _SAMPLE.fullmatch(line)
    if match is None:
        raise ValueError(f"not a sample: {line!r}")
    labels: dict[str, str] = {}
    rest = match[2] or ""
    while rest:
        label = _LABEL.match(rest)
        if label is None or label[1] in labels:
            raise ValueError(f"labels: {line!r}")
        labels[label[1]] = re.sub(r'\\["\\n]', lambda m: _UNESCAPE[m[0]], label[2])
        rest = rest[label.end() :]
    return match[1], labels, float(match[3])
