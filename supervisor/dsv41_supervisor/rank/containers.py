"""Containers of this node as podman knows them, and removing those whose rank is gone.

A rank that was killed leaves its container running where nothing else ends it, and a record of it everywhere: memory
that nobody owns, or a name that is taken. Which are leftovers their holder decides: the rank's process, by pid and
start time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Dsv41Error, Stage
from ..units.procfs import start_time
from .container import HOLDER_LABEL, NODE_LABEL

LOOK_S = 15.0
REMOVE_S = 30.0
_PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""What podman needs of our environment. CONTAINER_HOST and its like would have it look on another machine."""


class PodmanFailed(Exception):
    """It ended badly, was not there, or did not end. Says which, in words for people."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of ours. `pid` is its first process, 0 when none runs."""

    name: str
    state: str
    pid: int
    holder: str

    @property
    def left(self) -> bool:
        """Whether the rank that started it is gone."""
        pid, _, started = self.holder.partition("-")
        return not pid.isdigit() or str(start_time(int(pid))) != started


def podman_environment() -> dict[str, str]:
    """For podman itself; the engine's variables never are in it."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


async def podman(argv: Sequence[str], wait_s: float, says_no: int = 0) -> str | None:
    """Its standard output; None when it ended with the status `says_no`. Raises PodmanFailed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=podman_environment(),
        )  # fmt: skip
    except OSError as error:
        raise PodmanFailed(f"{argv[0]}: {error.strerror}") from None
    try:
        out, err = await asyncio.wait_for(process.communicate(), wait_s)
    except TimeoutError:
        raise PodmanFailed(f"{argv[0]} {argv[1]} did not end within {wait_s:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if says_no and process.returncode == says_no:
        return None
    if process.returncode:
        said = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
        raise PodmanFailed(f"{argv[0]} {argv[1]}: {said[-1][:200] if said else f'exit status {process.returncode}'}")
    return out.decode(errors="replace")


async def containers_of(program: str, node: str) -> list[Container]:
    """All of this node's, running or not. `node`: as in the label. Raises PodmanFailed."""
    text = await podman(
        [program, "ps", "--all", "--no-trunc", "--filter", f"label={NODE_LABEL}={node}", "--format", "json"], LOOK_S
    )
    try:
        rows = json.loads(text or "[]") or []
        return [_container(row) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise PodmanFailed(f"{program} ps printed something else than containers ({error!r})") from None


async def remove_left(program: str, node: str, *, holder: str | None = None) -> list[str]:
    """Remove what no rank holds any more, and what `holder` does; gives the names. Raises Dsv41Error when one stays."""
    try:
        found = [c for c in await containers_of(program, node) if c.left or c.holder == holder]
        for container in found:
            if container.pid:
                # Directly, and not by the runtime, which AppArmor may deny (LP#2040483). Its first process takes all
                # of its PID namespace with it.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(container.pid, signal.SIGKILL)
            # It may be on its way out by itself (--rm), hence --ignore.
            await podman([program, "rm", "--force", "--ignore", "--time", "0", container.name], REMOVE_S)
        still = {c.name for c in await containers_of(program, node)} & {c.name for c in found}
    except PodmanFailed as error:
        raise Dsv41Error(
            f"containers of earlier ranks cannot be removed: {error}.", stage=Stage.RANK, transient=True,
            hint=f"Run {program} ps --all --filter label={NODE_LABEL}={node} and {program} rm --force each.",
        ) from None  # fmt: skip
    if still:
        raise Dsv41Error(
            f"the container {', '.join(sorted(still))} of an earlier rank cannot be removed.", stage=Stage.RANK,
            hint=f"See why: {program} inspect {min(still)}; then {program} rm --force {min(still)}.", transient=True,
        )  # fmt: skip
    return sorted(c.name for c in found)


def _container(row: dict[str, Any]) -> Container:
    labels = row.get("Labels") or {}
    return Container(
        str(row["Names"][0]), str(row.get("State") or "unknown"), int(row.get("Pid") or 0),
        str(labels.get(HOLDER_LABEL, "")),
    )  # fmt: skip
