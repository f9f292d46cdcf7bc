"""Last lines of a unit from the journal, by a bounded journalctl.

journalctl and not a reader in this process: reading the journal maps its files, and the daemon stays small.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

from ..errors import Dsv41Error, Stage

READ_TIMEOUT_S = 20.0
MAX_BYTES = 8 << 20


async def last_lines(unit: str, n_lines: int) -> list[str]:
    """What the unit's own processes wrote, oldest first. Raises Dsv41Error when the journal cannot be read."""
    argv = (
        # _SYSTEMD_UNIT and not -u: that would mix in what systemd says about the unit.
        "journalctl", "--quiet", "--no-pager", "--output=json", "--output-fields=MESSAGE",
        f"--lines={max(n_lines, 1)}", f"_SYSTEMD_UNIT={unit}",
    )  # fmt: skip
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            limit=MAX_BYTES,
        )  # fmt: skip
    except OSError as error:
        raise _unreadable(unit, f"journalctl cannot be run ({error.strerror})") from None
    try:
        out, said = await asyncio.wait_for(process.communicate(), READ_TIMEOUT_S)
    except TimeoutError:
        raise _unreadable(unit, f"journalctl did not end within {READ_TIMEOUT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        raise _unreadable(unit, said.decode(errors="replace").strip().splitlines()[-1:] or "no reason given")
    return [line for raw in out.splitlines() for line in message_of(raw).splitlines() or [""]]


def message_of(raw: bytes) -> str:
    """MESSAGE of one line of `journalctl --output=json`: text, or numbers when it is not valid UTF-8."""
    try:
        message = json.loads(raw).get("MESSAGE")
    except ValueError:
        return ""
    if isinstance(message, str):
        return message
    if isinstance(message, list) and all(isinstance(n, int) for n in message):
        return bytes(message).decode(errors="replace")
    return ""


def _unreadable(unit: str, why: object) -> Dsv41Error:
    return Dsv41Error(
        f"the journal of {unit} cannot be read: {why}.", stage=Stage.RANK, transient=True,
        hint="Put the supervisor's user into the group systemd-journal, or run journalctl as root.",
    )  # fmt: skip
