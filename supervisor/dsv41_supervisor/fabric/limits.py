"""Resource limits a rank runs with: those of its unit or its process, never those of a shell.

PAM's limits do not reach systemd units, so `ulimit -l` in a terminal says nothing about a rank.
"""

from __future__ import annotations

import re

from .facts import UNLIMITED, Limits
from .roots import Roots, Unreadable, text, tool_output


def limits_of_process(roots: Roots, pid: int | str, of: str) -> Limits:
    """From /proc/PID/limits (soft limits). Raises Unreadable."""
    shown = text(roots.proc / str(pid) / "limits")
    if shown is None:
        raise Unreadable(f"/proc/{pid}/limits cannot be read")
    return Limits(of=of, memlock_bytes=_soft(shown, "Max locked memory"), n_files=_soft(shown, "Max open files"))


def _soft(shown: str, name: str) -> int:
    found = re.search(rf"^{name}\s+(\d+|unlimited)\s", shown, re.MULTILINE)
    if found is None:
        raise Unreadable(f"there is no line {name!r} among the limits")
    return _value(found[1])


async def limits_of_unit(unit: str) -> Limits:
    """What systemd will start a unit with. Raises Unreadable."""
    return unit_limits(unit, await tool_output("systemctl", "show", unit, "-p", "LimitMEMLOCKSoft,LimitNOFILESoft"))


def unit_limits(unit: str, shown: str) -> Limits:
    """From `systemctl show`: lines of Name=value; unlimited is written `infinity`. Raises Unreadable."""
    values = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    try:
        return Limits(
            of=f"unit {unit}",
            memlock_bytes=_value(values["LimitMEMLOCKSoft"]),
            n_files=_value(values["LimitNOFILESoft"]),
        )
    except (KeyError, ValueError):
        raise Unreadable(f"systemctl does not show the limits of {unit}") from None


def _value(shown: str) -> int:
    return UNLIMITED if shown in ("infinity", "unlimited", str(2**64 - 1)) else int(shown)
