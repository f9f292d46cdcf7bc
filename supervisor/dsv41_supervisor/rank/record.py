"""What is known about one rank in one boot, and the words for it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from .phases import Phase
from .state import RankState

RUNNING = (RankState.LOADING, RankState.WARMING, RankState.READY, RankState.DRAINING)
"""States with an engine process."""
ENDED = (RankState.STOPPED, RankState.FAILED)


@dataclass(slots=True)
class RankRecord:
    """Facts of this node's rank. Times are on the monotonic clock, in seconds."""

    state: RankState = RankState.ABSENT
    since_s: float = field(default_factory=time.monotonic)
    reason: str | None = None
    refused: bool = False
    """True when trying again would end the same way (exit 78)."""
    phase: Phase = Phase.STARTING
    fraction: float | None = None
    mark: int = 0
    progress_at_s: float = 0.0
    reported_at_s: float = 0.0
    armed: dict[str, str] = field(default_factory=dict)
    taken_up: bool = False
    """True for a rank that outlived a restart of its supervisor."""
    exit_status: int | None = None
    last_lines: tuple[str, ...] = ()
    max_total_tokens: int | None = None
    memory_line: str | None = None

    @property
    def sentence(self) -> str:
        """The state in a few words, with phase and reason."""
        if self.state is RankState.LOADING:
            percent = f" {self.fraction * 100:.0f} %" if self.fraction is not None else ""
            return f"loading, {self.phase}{percent}"
        return f"{self.state}{f': {self.reason}' if self.reason else ''}"
