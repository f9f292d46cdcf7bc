"""A version number that can be waited for: the base of every long poll."""

from __future__ import annotations

import asyncio
import time


class Changes:
    """Counts changes. Waiters wake at the first change after the version they have seen."""

    def __init__(self) -> None:
        # Not from 1: a restarted supervisor must not look like one whose version was seen before.
        self.version = int(time.time() * 1000)
        self._event = asyncio.Event()

    def bump(self) -> None:
        self.version += 1
        self._event.set()
        self._event = asyncio.Event()

    async def newer_than(self, seen: int, wait_s: float) -> bool:
        """Wait until the version differs from `seen`. False when `wait_s` seconds passed without a change."""
        try:
            async with asyncio.timeout(wait_s):
                while self.version == seen:
                    await self._event.wait()
        except TimeoutError:
            return False
        return True
