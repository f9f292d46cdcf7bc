"""What follows after a fleet lost a rank or a boot failed. Pure: what happened goes in, a decision comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..settings import Recovery


@dataclass(frozen=True, slots=True)
class Again:
    """Start in order after a pause."""

    pause_s: float
    number: int
    recoveries: tuple[float, ...]
    """When each recovery within the window began, this one included; seconds of the wall clock."""


@dataclass(frozen=True, slots=True)
class Stay:
    """Stay down until a person says otherwise."""

    why: str
    until: str
    """`up`, or `resume` when only the pause is in the way."""


def after_a_loss(why: str, recoveries: Sequence[float], now_s: float, paused: bool, settings: Recovery) -> Again | Stay:
    """A boot that served is over: start again, a bounded number of times in a window."""
    if paused:
        return Stay(f"recovery is paused, and {why}", "resume")
    lately = tuple(t for t in recoveries if 0 <= now_s - t < settings.window_s)
    if len(lately) >= settings.max_recoveries:
        return Stay(f"{len(lately)} recoveries within {settings.window_s:.0f} s did not hold; staying down. "
                    f"Last reason: {why}", "up")  # fmt: skip
    return Again(settings.backoff_s * 2 ** len(lately), len(lately) + 1, (*lately, now_s))


def after_a_failed_boot(
    why: str, recovering: bool, transient: bool, recoveries: Sequence[float], now_s: float, paused: bool,
    settings: Recovery,
) -> Again | Stay:  # fmt: skip
    """A boot failed before it served. One that never worked is not tried again as if it had, and neither is a refusal:
    the same thing would happen."""
    if recovering and transient:
        return after_a_loss(why, recoveries, now_s, paused, settings)
    return Stay(f"the boot failed and is not tried again: {why}", "up")
