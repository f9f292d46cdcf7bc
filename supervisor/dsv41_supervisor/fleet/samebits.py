"""Same bits on every rank, or no boot: what must be equal is compared, and a mixture is refused by name. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import Refusal, Stage

_NEXT = {
    "settings hash": "Run nixos-rebuild switch (or restart the supervisors) with the same fleet file on every node.",
    "supervisor version": "Run nixos-rebuild switch on every node from the same flake.lock.",
    "supervisor closure": "Run nixos-rebuild switch on every node from the same flake.lock.",
    "engine": "Run nixos-rebuild switch on every node from the same flake.lock; without Nix, install the engine anew.",
    "libnccl": "Give every node the same library: the engine's own, or engine.nccl.library.",
    "libnccl mapped": "See what replaces the library on one node: LD_PRELOAD, LD_LIBRARY_PATH, a second copy.",
    "packed rows": "Run systemctl start dsv41-pack (or dsv41 pack) on the node that differs.",
    "SPS table": "Copy one engine.speculative.sps_table to every node; with different ones the ranks hang.",
    "kernel": "Reboot the node that runs another kernel, or name kernel in supervisor.tolerated_differences.",
    "driver": "Reboot the node that runs another driver, or name driver in supervisor.tolerated_differences.",
}
N_SHOWN = 96


def differences(
    statuses: Mapping[str, Mapping[str, Any]], *, facts: str = "same", tolerated: Collection[str] = ()
) -> list[Refusal]:
    """One refusal per fact on which the nodes do not agree; every value is named with its nodes.

    `facts` is `same` (known before admission) or `same_running` (known once ranks answer).
    """
    refusals = []
    for name, holders in mixed(statuses, facts).items():
        if name in tolerated:
            continue
        shown = "; ".join(f"{_shown(value)} on {', '.join(nodes)}" for value, nodes in holders.items())
        refusals.append(
            Refusal(
                Stage.RANK, f"the nodes do not agree on the {name}: {shown}.",
                _NEXT.get(name, "Make it the same on every node, then run dsv41 up."), check="same-bits",
            )
        )  # fmt: skip
    return refusals


def mixed(statuses: Mapping[str, Mapping[str, Any]], facts: str = "same") -> dict[str, dict[str, list[str]]]:
    """Facts on which the nodes do not agree: each value with its nodes."""
    found = {}
    for name in sorted({name for status in statuses.values() for name in status.get(facts, {})}):
        holders: dict[str, list[str]] = defaultdict(list)
        for node, status in statuses.items():
            holders[str(status.get(facts, {}).get(name, "unknown"))].append(node)
        if len(holders) > 1:
            found[name] = dict(holders)
    return found


def _shown(value: str) -> str:
    return value[:16] if re.fullmatch(r"[0-9a-f]{64}", value) else value[:N_SHOWN]
