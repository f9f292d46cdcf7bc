"""What one node has to say about an incident. Each part by itself: one that fails is named, and loses no other."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..guard.link import samples_table
from .bundle import as_text
from .redact import Redactor, secrets_of

if TYPE_CHECKING:
    from ..node import NodeAgent

PART_S = 8.0
KERNEL_BYTES = 256 << 10
MAX_KERNEL_RECORDS = 20000
N_SUPERVISOR_LINES = 500
_PROC = ("meminfo", "pressure/memory", "pressure/io", "loadavg", "version", "driver/nvidia/version")


class LastLines(logging.Handler):
    """What this supervisor logged last, wherever its log goes."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=N_SUPERVISOR_LINES)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.lines.append(self.format(record)[:2000])
        except Exception:
            self.handleError(record)


LAST_LINES = LastLines()


async def collect(agent: NodeAgent) -> dict[str, Any]:
    """`{"parts": {name: text}, "failed": {name: why}}`, without secrets. Never raises, and ends within bounds."""
    from ..units import rank_unit

    lines = agent.settings.incidents.log_lines
    redactor = await asyncio.to_thread(lambda: Redactor(secrets_of(agent.settings, agent.node)))

    async def rank_log() -> str:
        return "\n".join(await agent.tail(rank_unit(agent.rank_number), lines))

    async def memory() -> str:
        return "\n".join([*samples_table(agent.guard.samples), "", as_text(agent.guard.status())])

    async def kills() -> str:
        return as_text({"kills": list(agent.guard.kills.values()), "notices": agent.notices.to_json()})

    async def status() -> str:
        return as_text(agent.status())

    async def measured() -> str:
        return as_text(await agent.measure())

    async def rails() -> str:
        return "\n".join(agent.rails.lines()) or "no rails in the settings of this node"

    async def supervisor() -> str:
        return "\n".join(LAST_LINES.lines)

    async def kernel() -> str:
        return await asyncio.to_thread(kernel_lines)

    async def versions() -> str:
        return as_text(
            {"supervisor": __version__, "python": sys.version, "kernel": platform.release(),
             "same": agent.shown.same_bits(), "machine": platform.machine(), "cores": os.cpu_count()}
        )  # fmt: skip

    async def proc() -> str:
        return await asyncio.to_thread(_proc_files)

    wanted: dict[str, Callable[[], Awaitable[str]]] = {
        "rank.log": rank_log, "supervisor.log": supervisor, "memory.txt": memory, "kills.json": kills,
        "status.json": status, "measured.json": measured, "rails.txt": rails, "kernel.log": kernel,
        "versions.json": versions, "proc.txt": proc,
    }  # fmt: skip
    parts: dict[str, str] = {}
    failed: dict[str, str] = {}

    async def take(name: str, read: Callable[[], Awaitable[str]]) -> None:
        try:
            async with asyncio.timeout(PART_S):
                parts[name] = redactor.text(await read())
        except TimeoutError:
            failed[name] = f"not read within {PART_S:.0f} s"
        except Exception as error:
            failed[name] = redactor.text(f"{type(error).__name__}: {error}")

    await asyncio.gather(*(take(name, read) for name, read in wanted.items()))
    return {"parts": {name: parts[name] for name in wanted if name in parts}, "failed": failed}


def kernel_lines(path: str = "/dev/kmsg", limit_bytes: int = KERNEL_BYTES) -> str:
    """The kernel's log as it stands, its end when it is long. Source: dev-kmsg ABI, one record a read."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    lines: list[str] = []
    size = 0
    try:
        for _ in range(MAX_KERNEL_RECORDS):
            try:
                record = os.read(fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue
            if not record:
                break
            head, _, text = record.decode(errors="replace").partition(";")
            fields = head.split(",")
            at = f"[{int(fields[2]) / 1e6:.6f}] " if len(fields) > 2 and fields[2].isdigit() else ""
            lines.append(at + text.splitlines()[0] if text else head)
            size += len(lines[-1]) + 1
    finally:
        os.close(fd)
    while lines and size > limit_bytes:
        size -= len(lines.pop(0)) + 1
    return "\n".join(lines)


def _proc_files() -> str:
    said = []
    for name in _PROC:
        try:
            said.append(f"--- /proc/{name}\n{Path('/proc', name).read_text()}")
        except OSError as error:
            said.append(f"--- /proc/{name}: {error.strerror}\n")
    return "\n".join(said)
