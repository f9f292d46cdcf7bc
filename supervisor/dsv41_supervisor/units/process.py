"""Units as child processes: the demo, machines without systemd, and fast tests.

Each unit's main process is the leader of a session of its own, and the supervisor is a child subreaper, so that
everything a unit started can be found again: by session, or by descent from this process. A supervisor that is
restarted finds the units of its predecessor by a record of pid and start time on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..atomic import read_json, set_aside
from ..errors import Dsv41Error, Stage
from ..journal import log
from . import OnExit, UnitState, UnitStatus, unknown_unit
from .procfs import Proc, pid_is, processes, start_time

_PR_SET_CHILD_SUBREAPER = 36
LOOK_S = 10.0
"""Each look reads every process of the machine."""
LOG_BYTES = 16 << 20
"""A unit's log starts anew beyond this; the previous one is kept as .1."""


@dataclass(frozen=True, slots=True)
class UnitDefinition:
    """What runs when a unit starts."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    log_path: Path
    oneshot: bool = False


@dataclass(slots=True)
class _Running:
    definition: UnitDefinition
    pid: int
    started: int
    """Start time in clock ticks since boot: a pid alone may have been used again."""
    process: asyncio.subprocess.Process | None
    exit_status: int | None = None
    stopping: bool = False
    ended: asyncio.Event | None = None
    known: dict[int, int] = field(default_factory=dict)
    """Members seen so far, pid to start time: one that made a session of its own and lost its parent is still ours."""


class ProcessUnits:
    """Backend that runs each unit as a session of child processes."""

    def __init__(self, definitions: Callable[[str], UnitDefinition], record_dir: Path, on_exit: OnExit | None = None):
        self._definitions = definitions
        self._record_dir = record_dir
        self.on_exit = on_exit
        self._units: dict[str, _Running] = {}
        self._orphans: dict[int, int] = {}
        """Every member that was seen and not yet gone, pid to start time."""
        self._watchers: set[asyncio.Task[None]] = set()
        self._knowing = False
        record_dir.mkdir(parents=True, exist_ok=True)
        # Orphans of a unit come to us instead of PID 1, so that no one escapes the search in `members`.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._adopt()

    async def start(self, unit: str) -> None:
        running = self._units.get(unit)
        if running is not None and running.exit_status is None:
            return
        try:
            definition = self._definitions(unit)
        except KeyError:
            raise unknown_unit(unit) from None
        try:
            definition.log_path.parent.mkdir(parents=True, exist_ok=True)
            if definition.log_path.exists() and definition.log_path.stat().st_size > LOG_BYTES:
                definition.log_path.replace(definition.log_path.with_suffix(".log.1"))
            with definition.log_path.open("ab", buffering=0) as out:
                out.write(f"--- {unit} started {time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n".encode())
                process = await asyncio.create_subprocess_exec(
                    *definition.argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=dict(definition.environment),
                    start_new_session=True,
                )
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise Dsv41Error(
                f"cannot start {unit}: {error.filename or definition.argv[0]}: {error.strerror}.",
                stage=Stage.RANK,
                hint="Free some space, then try again."
                if full
                else "Run make to build the environments, then try again.",
                transient=full,
            ) from None
        running = _Running(definition, process.pid, start_time(process.pid) or 0, process, ended=asyncio.Event())
        self._units[unit] = running
        self._spawn(self._watch(unit, running))
        self._keep_knowing()
        try:
            self._write_record(unit, running)
        except OSError as error:
            # The unit runs and is watched; only a supervisor after us would not find it.
            log.warning("cannot write the record of %s: %s", unit, error.strerror)

    async def stop(self, unit: str, timeout_s: float) -> UnitStatus:
        running = self._units.get(unit)
        if running is None:
            return UnitStatus(unit, UnitState.INACTIVE)
        running.stopping = True
        deadline = time.monotonic() + timeout_s
        self._members(running)
        if running.exit_status is None:
            _signal([running.pid], signal.SIGTERM)
        while self._members(running) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for _ in range(100):
            # By force, until a whole look finds nobody: a process may fork while we kill.
            members = self._members(running)
            if not members:
                break
            _signal(members, signal.SIGKILL)
            await asyncio.sleep(0.05)
        if running.ended is not None and not self._members(running):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running.ended.wait(), 2)
        status = await self.status(unit)
        if not status.members:
            self._units.pop(unit, None)
            self._record(unit).unlink(missing_ok=True)
        return status

    async def status(self, unit: str) -> UnitStatus:
        running = self._units.get(unit)
        if running is None:
            return UnitStatus(unit, UnitState.INACTIVE)
        members = tuple(self._members(running))
        if running.exit_status is None:
            state = UnitState.STOPPING if running.stopping else UnitState.ACTIVE
        elif running.exit_status == 0 or running.stopping:
            state = UnitState.INACTIVE
        else:
            state = UnitState.FAILED
        main = running.pid if running.exit_status is None else None
        since_s = running.started / os.sysconf("SC_CLK_TCK")
        return UnitStatus(unit, state, main, running.exit_status, members, f"{running.pid}-{running.started}", since_s)

    async def tail(self, unit: str, n_lines: int) -> Sequence[str]:
        path = self._definitions(unit).log_path
        return await asyncio.to_thread(_tail, path, n_lines)

    async def going_down(self) -> bool:
        return False

    async def close(self, *, stop_all: bool) -> None:
        if stop_all:
            async with asyncio.TaskGroup() as group:
                for unit in list(self._units):
                    group.create_task(self.stop(unit, 5))
        for task in list(self._watchers):
            task.cancel()

    # -- private -------------------------------------------------------------------------------------------------

    def _members(self, running: _Running, table: Mapping[int, Proc] | None = None) -> list[int]:
        """Living processes of a unit: of its session, descended from those, or seen to be so before."""
        table = processes() if table is None else table
        mine = {p.pid for p in table.values() if p.session == running.pid and p.start_ticks >= running.started}
        mine |= {pid for pid, ticks in running.known.items() if pid in table and table[pid].start_ticks == ticks}
        if running.exit_status is None and pid_is(table, running.pid, running.started):
            mine.add(running.pid)
        grew = True
        while grew:
            found = {p.pid for p in table.values() if p.parent in mine} - mine
            mine |= found
            grew = bool(found)
        running.known = {pid: table[pid].start_ticks for pid in mine}
        self._orphans |= {pid: ticks for pid, ticks in running.known.items() if pid != running.pid}
        self._reap(table)
        return sorted(pid for pid in mine if not table[pid].dead)

    def _reap(self, table: Mapping[int, Proc]) -> None:
        """We are the subreaper: members that lost their parent wait for us when they end. Nobody else's are touched."""
        for pid, ticks in list(self._orphans.items()):
            if pid not in table or table[pid].start_ticks != ticks:
                del self._orphans[pid]
            elif table[pid].dead and table[pid].parent == os.getpid():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    async def _watch(self, unit: str, running: _Running) -> None:
        if running.process is not None:
            code = await running.process.wait()
        else:
            code = await _wait_foreign(running.pid, running.started)
        running.exit_status = code
        if running.ended is not None:
            running.ended.set()
        self._record(unit).unlink(missing_ok=True)
        if self._units.get(unit) is running and not running.stopping and not running.definition.oneshot:
            # What outlives the main process of a unit has no one to answer to (systemd: KillMode=control-group).
            _signal(self._members(running), signal.SIGKILL)
        if self.on_exit is not None:
            ours = self._units.get(unit) is running
            status = await self.status(unit) if ours else UnitStatus(unit, UnitState.INACTIVE, None, code)
            result = self.on_exit(status)
            if result is not None:
                await result

    def _keep_knowing(self) -> None:
        if not self._knowing:
            self._knowing = True
            self._spawn(self._know())

    async def _know(self) -> None:
        """Look at every unit's processes now and then, so that none can slip away by losing its parent."""
        try:
            while self._units or self._orphans:
                table = processes()
                for running in self._units.values():
                    self._members(running, table)
                self._reap(table)
                await asyncio.sleep(LOOK_S)
        finally:
            self._knowing = False

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._watchers.add(task)
        task.add_done_callback(self._watched)

    def _watched(self, task: asyncio.Task[None]) -> None:
        self._watchers.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("watching a unit failed", exc_info=task.exception())

    def _record(self, unit: str) -> Path:
        return self._record_dir / f"unit-{unit}.json"

    def _write_record(self, unit: str, running: _Running) -> None:
        text = json.dumps({"pid": running.pid, "started": running.started})
        temporary = self._record(unit).with_suffix(".tmp")
        temporary.write_text(text)
        temporary.replace(self._record(unit))

    def _adopt(self) -> None:
        """Units of a supervisor that ended before us: taken over when the very same process still lives."""
        for path in self._record_dir.glob("unit-*.json"):
            unit = path.name.removeprefix("unit-").removesuffix(".json")
            try:
                if (raw := read_json(path)) is None:
                    continue
                pid, started = int(raw["pid"]), int(raw["started"])
            except (ValueError, KeyError, TypeError):
                set_aside(path, "has another shape")
                continue
            if start_time(pid) != started:
                path.unlink(missing_ok=True)
                continue
            running = _Running(self._definitions(unit), pid, started, None, ended=asyncio.Event())
            self._units[unit] = running
            self._spawn(self._watch(unit, running))
            self._keep_knowing()
            log.info("took over %s (pid %d) from the supervisor before", unit, pid)


async def _wait_foreign(pid: int, started: int) -> int:
    """Wait for a process that is not our child. Its exit status cannot be known: -1."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return -1
    try:
        if start_time(pid) != started:
            return -1
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(fd, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(fd)
        return -1
    finally:
        os.close(fd)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _tail(path: Path, n_lines: int, limit_bytes: int = 256 << 10) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit_bytes))
            return file.read().decode(errors="replace").splitlines()[-max(n_lines, 1) :]
    except FileNotFoundError:
        return []
