"""Telling a person: the alert command gets the sentence on its standard input."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..journal import log

ALERT_S = 30.0


async def alert(command: Sequence[str] | None, sentence: str) -> None:
    """Run the command, if there is one. What goes wrong is logged; a command that hangs is killed."""
    if command is None:
        return
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    except OSError as error:
        log.error("the alert command %s cannot be started: %s", command[0], error.strerror)
        return
    try:
        await asyncio.wait_for(process.communicate(f"{sentence}\n".encode()), ALERT_S)
    except (OSError, TimeoutError) as error:
        log.error("the alert command %s failed: %s", command[0], type(error).__name__)
        if process.returncode is None:
            process.kill()
