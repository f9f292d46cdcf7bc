"""Starting and stopping units behind one small interface: systemd over the system bus, or child processes.

The supervisor decides when; this package only does it and says what is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ..errors import Dsv41Error, Stage

PACK_UNIT = "dsv41-pack"


def rank_unit(rank: int) -> str:
    """The unit that runs a rank on its node."""
    return f"dsv41-rank@{rank}"


class UnitState(StrEnum):
    """Like systemd's ActiveState, reduced to what is decided on."""

    INACTIVE = "inactive"
    ACTIVE = "active"
    STOPPING = "deactivating"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class UnitStatus:
    """One look at a unit. `members` are all processes it started that still live, the main one included."""

    name: str
    state: UnitState
    main_pid: int | None = None
    exit_status: int | None = None
    """Exit status of the main process when it has ended; -N when signal N ended it."""
    members: tuple[int, ...] = ()
    invocation: str | None = None
    """Names one run of the unit for ever: another start has another one."""
    active_since_s: float | None = None
    """When it became active, on the machine's monotonic clock; None while it never was."""


class Units(Protocol):
    """What both backends do. Every method is safe to call again."""

    async def start(self, unit: str) -> None:
        """Start a unit; a unit that runs is left alone. Raises Dsv41Error when it cannot be started."""

    async def stop(self, unit: str, timeout_s: float) -> UnitStatus:
        """Stop a unit and everything it started; politely first, by force after `timeout_s`. Reports what is left."""

    async def status(self, unit: str) -> UnitStatus:
        """Look at a unit now."""

    async def tail(self, unit: str, n_lines: int) -> Sequence[str]:
        """Last lines that the unit's processes wrote."""

    async def going_down(self) -> bool:
        """Whether the machine is being shut down: a unit that is stopped then was not stopped by a person."""

    async def close(self, *, stop_all: bool) -> None:
        """Let go of the backend; with `stop_all` every unit is stopped first."""


OnExit = Callable[[UnitStatus], Awaitable[None] | None]
"""Hears that a unit's main process ended, once for each run. Others of the unit may still be on their way out."""


def unknown_unit(unit: str) -> Dsv41Error:
    return Dsv41Error(
        f"{unit} is not a unit of this node.", stage=Stage.RANK, hint="A node runs dsv41-pack and its own rank alone."
    )
