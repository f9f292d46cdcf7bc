"""How one of the demo's processes ended, and what its log says about that. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

N_LINES = 3
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


def last_errors(lines: Sequence[str]) -> list[str]:
    """The last lines that tell of an error. Others are what it did, not why it ended."""
    return [line.removeprefix("dsv41: ") for line in lines if _ERROR.match(line)][-N_LINES:]


def sentence(name: str, returncode: int, lines: Sequence[str]) -> str:
    """What happened to `name`, as the first part of an error."""
    errors = last_errors(lines)
    if errors:
        return f"{name} {how(returncode)}. The last errors in its log: {' | '.join(errors)}"
    return f"{name} {how(returncode)}. Its log {'has no line about an error' if lines else 'is empty'}."


def hint(returncode: int, log_path: object) -> str:
    """What to do next."""
    if returncode == -signal.SIGKILL:
        return f"Nothing but another process or the OOM killer sends that (dmesg | tail). Its log is {log_path}."
    return f"Its log is {log_path}."
