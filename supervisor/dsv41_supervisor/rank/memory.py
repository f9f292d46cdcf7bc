"""Whether the memory of a rank that is gone has come back: a new rank beside it would run out."""

from __future__ import annotations

import asyncio
import time

from ..units.procfs import memory_available_bytes

BACK_S = 30.0
"""A killed process gives 100 GiB back in a few seconds; guess, never measured on GB10."""
SLACK_BYTES = 8 << 30
SLACK_FRACTION = 0.25
"""Of what the rank took: page cache and others move meanwhile."""
LOOK_S = 0.25


class MemoryLevel:
    """MemAvailable when a rank started, and the least while it ran."""

    def __init__(self) -> None:
        self._before: int | None = None
        self._least = 0

    def rank_starts(self) -> None:
        self._before = self._least = memory_available_bytes()

    def seen(self, available_bytes: int) -> None:
        self._least = min(self._least, available_bytes)

    async def missing_bytes(self, wait_s: float = BACK_S) -> int:
        """Bytes that did not come back within `wait_s`; 0 when all did or no rank ran. Asked once a rank: whoever
        looks later has been told."""
        if self._before is None:
            return 0
        before, self._before = self._before, None
        enough = before - max(SLACK_BYTES, int(SLACK_FRACTION * (before - min(self._least, before))))
        deadline = time.monotonic() + wait_s
        while (available := memory_available_bytes()) < enough and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
        return max(0, before - available) if available < enough else 0
