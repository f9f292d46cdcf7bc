"""Pause per priority (PFC) and congestion marking (ECN) of an interface, where they can be read."""

from __future__ import annotations

from typing import Any

from .roots import Roots, Unreadable, names, number, tool_json


async def read_pfc(interface: str) -> tuple[int, ...]:
    """Priorities with pause, by `dcb -j`: pyroute2 has no DCB messages. Raises Unreadable."""
    return pfc_priorities(await tool_json("dcb", "-j", "pfc", "show", "dev", interface))


def pfc_priorities(shown: Any) -> tuple[int, ...]:
    """From the JSON of `dcb pfc show`: {"prio-pfc": {"0": false, …}} or a list of booleans. Raises Unreadable."""
    table = shown.get("prio-pfc") if isinstance(shown, dict) else None
    if isinstance(table, list):
        table = {str(i): on for i, on in enumerate(table)}
    if not isinstance(table, dict) or not all(str(key).isdigit() for key in table):
        raise Unreadable("dcb printed no table of priorities")
    return tuple(sorted(int(key) for key, on in table.items() if on is True))


def read_ecn(roots: Roots, interface: str) -> tuple[int, ...] | None:
    """Priorities on which this end asks senders to slow down (roce_np); None where the driver shows none."""
    enable = roots.sys / "class/net" / interface / "ecn/roce_np/enable"
    found = [name for name in names(enable) if name.isdigit()]
    return tuple(int(name) for name in found if number(enable / name)) if found else None
