"""Same bits on every rank, or no boot: what must be equal is compared, and a mixture is refused by name. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ..errors import Refusal, Stage

_NEXT = {
    "settings hash": "Run nixos-rebuild switch (or restart the supervisors) with the same fleet file on every node.",
    "supervisor version": "Run nixos-rebuild switch on every node from the same flake.lock.",
    "kernel": "Reboot the node that runs another kernel.",
}


def differences(statuses: Mapping[str, Mapping[str, Any]]) -> list[Refusal]:
    """One refusal per fact on which the nodes do not agree; every value is named with its nodes."""
    refusals = []
    names = sorted({name for status in statuses.values() for name in status["same"]})
    for name in names:
        holders: dict[str, list[str]] = defaultdict(list)
        for node, status in statuses.items():
            holders[str(status["same"].get(name, "unknown"))].append(node)
        if len(holders) > 1:
            shown = "; ".join(f"{value[:16]} on {', '.join(nodes)}" for value, nodes in holders.items())
            refusals.append(
                Refusal(
                    Stage.RANK, f"the nodes do not agree on the {name}: {shown}.",
                    _NEXT.get(name, "Make it the same on every node, then run dsv41 up."), check="same-bits",
                )
            )  # fmt: skip
    return refusals
