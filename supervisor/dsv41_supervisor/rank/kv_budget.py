"""The KV pin asked for, the pin granted, and what the engine said it had: parsed by key. Pure.

SGLang clamps a pin that does not fit and serves on; what fits moves with the page cache, so a fleet that served 8M
tokens yesterday serves 6M today and nobody is told. Source: sglang 0.5.23 `DSV4PoolConfigurator`, one INFO line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Refusal, Stage

MARK = "DSV4 memory calculation:"
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([^,\s]+)(?:\s*(GB|MB|KB|B)\b)?")
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
SKEW_FRACTION = 0.05
"""Guess; never measured. Ranks are the same machines: one with this much less room has something else in its memory."""


def parse_line(line: str) -> dict[str, float | int | str]:
    """Every `key=value` after the mark, {} for another line. Units are multiplied in (`GB` there is 2^30); a value that
    is no figure stays text.
    """
    _, mark, rest = line.partition(MARK)
    if not mark:
        return {}
    found: dict[str, float | int | str] = {}
    for key, value, unit in _PAIR.findall(rest):
        try:
            figure = float(value) * _UNITS[unit] if unit else float(value) if "." in value else int(value)
        except (ValueError, OverflowError):
            found[key] = value
        else:
            found[key] = figure
    return found


@dataclass(frozen=True, slots=True)
class KvBudget:
    """One rank's budget in tokens; None where it is not known yet, or not asked for."""

    asked: int | None
    fits: int | None
    granted: int | None
    available_bytes: float | None
    bytes_per_token: float | None
    line: dict[str, float | int | str]

    @property
    def difference(self) -> int | None:
        """Granted beyond asked; negative when clamped."""
        return None if self.asked is None or self.granted is None else self.granted - self.asked

    def clamped(self, min_fraction: float) -> str | None:
        """Why a boot with this budget is refused; None while it is not."""
        if self.asked is None or self.granted is None or self.granted >= self.asked * min_fraction:
            return None
        room = f" from {self.available_bytes / 2**30:.2f} GiB" if self.available_bytes is not None else ""
        return (
            f"the KV pin of {self.asked} tokens was clamped to {self.granted}{room}, "
            f"{self.granted / self.asked:.1%} of it (engine.memory.min_granted_fraction is {min_fraction:g}). "
            "See what holds memory on this node, or set engine.memory.max_total_tokens to what fits on every rank"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "asked": self.asked, "fits": self.fits, "granted": self.granted, "difference": self.difference,
            "available_bytes": self.available_bytes, "bytes_per_token": self.bytes_per_token, "line": self.line,
        }  # fmt: skip


def kv_budget(asked: int | None, memory_line: str | None, max_total_tokens: int | None) -> KvBudget:
    """What is known so far. `max_total_tokens` is the engine's last word; until then the pin or what fits counts."""
    line = parse_line(memory_line or "")
    fits = _whole(line.get("full_token"))
    granted = max_total_tokens
    if granted is None and fits is not None:
        granted = fits if asked is None else min(asked, fits)
    return KvBudget(
        asked, fits, granted, _figure(line.get("available_bytes")), _figure(line.get("bytes_per_full_token")), line
    )


def unequal(statuses: Mapping[str, Mapping[str, Any]]) -> tuple[list[Refusal], list[str]]:
    """Ranks whose budgets differ: refusals for different grants (they would admit different requests), and sentences
    for ranks with clearly less room than others."""
    grants = {n: s["kv"]["granted"] for n, s in statuses.items() if s.get("kv") and s["kv"]["granted"] is not None}
    refusals, notes = [], []
    if len(set(grants.values())) > 1:
        shown = ", ".join(f"{n} {tokens}" for n, tokens in grants.items())
        refusals.append(
            Refusal(
                Stage.ENGINE, f"the ranks were granted different KV budgets: {shown} tokens.",
                "Set engine.memory.max_total_tokens to what fits on every rank.", check="kv-budget",
            )
        )  # fmt: skip
    rooms = {n: s["kv"]["available_bytes"] for n, s in statuses.items() if s.get("kv") and s["kv"]["available_bytes"]}
    most = max(rooms.values(), default=0)
    for name, room in rooms.items():
        if room < most * (1 - SKEW_FRACTION):
            notes.append(
                f"{name} has {room / 2**30:.2f} GiB for the KV pool, another rank {most / 2**30:.2f}: "
                "something else holds its memory"
            )
    return refusals, notes


def _figure(value: float | int | str | None) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _whole(value: float | int | str | None) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None
