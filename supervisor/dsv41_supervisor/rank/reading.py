"""Bytes that a rank's processes have read: a sign of progress where the log has none (a worker has no progress bar)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..units.procfs import processes
from .phases import Phase

STEP_BYTES = 64 << 20
"""One sign of progress; guess. A drive that gives less than this in a stall timer's time is as good as hung."""
_WHERE_IT_COUNTS = (Phase.STARTING, Phase.WEIGHTS)


def bytes_read(session: int) -> int:
    """By read calls and by page faults of mapped files, of all processes of a session. Source: proc(5), /proc/pid/io;
    what the page cache or the network gave counts by `rchar`, what a mapping read from a drive by `read_bytes`."""
    total = 0
    for process in processes().values():
        if process.session != session:
            continue
        try:
            text = Path(f"/proc/{process.pid}/io").read_text()
        except OSError:
            continue
        figures = dict(line.split(": ", 1) for line in text.splitlines())
        total += int(figures.get("rchar", 0)) + int(figures.get("read_bytes", 0))
    return total


class Reading:
    """Counts signs of progress of this process's session while it loads."""

    def __init__(self, read: Callable[[int], int] = bytes_read) -> None:
        self.n_signs = 0
        self._read = read
        self._counted = 0

    def look(self, phase: Phase) -> int:
        """Signs so far. Reads nothing outside the phases in which reading is progress."""
        if phase in _WHERE_IT_COUNTS:
            now = self._read(os.getsid(0))
            if now < self._counted:
                # A process of the session ended and took its count with it.
                self._counted = now
            if now - self._counted >= STEP_BYTES:
                self._counted = now
                self.n_signs += 1
        return self.n_signs
