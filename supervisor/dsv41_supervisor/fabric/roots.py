"""Where readers look, and the few ways they read. Tests give a made-up tree; nothing else of a reader changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_TEXT_BYTES = 64 << 10
MAX_TOOL_BYTES = 8 << 20
TOOL_TIMEOUT_S = 3.0
KILLED_S = 0.5


@dataclass(frozen=True, slots=True)
class Roots:
    """The trees that the kernel and systemd show."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    run: Path = Path("/run")


class Unreadable(Exception):
    """A fact that cannot be had here; the text says why, in half a sentence."""


def text(path: Path | str) -> str | None:
    """A small file's text without surrounding space; None when it is not there or refuses to be read.

    The kernel answers EINVAL for a GID index that is not set, and for the speed of an interface that is down.
    """
    try:
        # A GID table is a thousand such files, read every second: a file object each would cost five times as much.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        return os.read(file, MAX_TEXT_BYTES).decode(errors="replace").strip()
    except OSError:
        return None
    finally:
        os.close(file)


def number(path: Path) -> int | None:
    """The first whole number in a small file."""
    found = re.match(r"-?\d+", text(path) or "")
    return int(found[0]) if found else None


def names(path: Path) -> list[str]:
    """Names in a directory, sorted; none when it is not there."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError:
        return []


async def tool_output(*argv: str) -> str:
    """What a small tool prints. Raises Unreadable when it is missing, fails, or takes longer than TOOL_TIMEOUT_S."""
    where = shutil.which(argv[0])
    if where is None:
        raise Unreadable(f"{argv[0]} is not installed")
    try:
        process = await asyncio.create_subprocess_exec(
            where, *argv[1:], stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        raise Unreadable(f"{argv[0]} cannot be started: {error.strerror}") from None
    try:
        async with asyncio.timeout(TOOL_TIMEOUT_S):
            out, err = await process.communicate()
    except BaseException as error:
        if process.returncode is None:
            process.kill()
            # One that the kernel holds is not even ended by that; it is left alone.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), KILLED_S)
        if isinstance(error, TimeoutError):
            raise Unreadable(f"{argv[0]} did not end within {TOOL_TIMEOUT_S:g} s") from None
        raise
    if process.returncode:
        said = err.decode(errors="replace").strip().splitlines()
        raise Unreadable(f"{argv[0]} failed: {said[0][:150] if said else f'exit status {process.returncode}'}")
    if len(out) > MAX_TOOL_BYTES:
        raise Unreadable(f"{argv[0]} printed {len(out)} bytes, more than anyone should read")
    return out.decode(errors="replace")


async def tool_json(*argv: str) -> Any:
    """What a small tool prints, as JSON. Raises Unreadable."""
    out = await tool_output(*argv)
    try:
        return json.loads(out or "null")
    except ValueError:
        raise Unreadable(f"{argv[0]} did not print JSON") from None
