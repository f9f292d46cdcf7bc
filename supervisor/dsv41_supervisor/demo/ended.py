"""How one of the demo's processes ended, and what its log says about that. Pure."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence

N_LINES = 3
BEFORE_S = 10.0
"""An error that is older than this when the process ends is not why it ended."""
DAY_S = 86400
NOT_AGAIN = "The demo does not start it again: Ctrl-C, then make demo."
_TIME = re.compile(r"^(\d\d):(\d\d):(\d\d)\.\d{3} ")
_ERROR = re.compile(r"^(\d\d:\d\d:\d\d\.\d{3} (error|critical)\s|dsv41: )")
"""A line of `journal._TextFormatter` that matters, or what a command says before it ends."""


def how(returncode: int) -> str:
    """An exit status in words; asyncio gives a signal as its negative number."""
    if returncode >= 0:
        return f"ended with status {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def last_errors(lines: Sequence[str], ended_at: float) -> list[str]:
    """The last lines that tell of an error shortly before the end. Others are what it did, not why it ended."""
    found: list[str] = []
    for line in reversed(lines):
        at = _TIME.match(line)
        if at is not None and _seconds_before(ended_at, *map(int, at.groups())) > BEFORE_S:
            break
        if _ERROR.match(line):
            found.append(line.removeprefix("dsv41: "))
    return found[:N_LINES][::-1]


def _seconds_before(ended_at: float, hours: int, minutes: int, seconds: int) -> float:
    """Lines have a time of day only."""
    end = time.localtime(ended_at)
    before = (end.tm_hour * 3600 + end.tm_min * 60 + end.tm_sec - (hours * 3600 + minutes * 60 + seconds)) % DAY_S
    # A line of the same moment may seem to come after it.
    return before if before < DAY_S - BEFORE_S else 0


def sentence(name: str, returncode: int, lines: Sequence[str], ended_at: float) -> str:
    """What happened to `name`, as the first part of an error."""
    errors = last_errors(lines, ended_at)
    if errors:
        return f"{name} {how(returncode)}. The last errors in its log: {' | '.join(errors)}"
    return f"{name} {how(returncode)}. Its log {f'has no error of its last {BEFORE_S:.0f} s' if lines else 'is empty'}."


def hint(returncode: int, log_path: object) -> str:
    """What to do next."""
    if returncode == -signal.SIGKILL:
        return f"Nothing but another process or the OOM killer sends that (dmesg | tail). Its log is {log_path}."
    return f"Its log is {log_path}."
