"""Units of systemd, over the system bus: what a declared machine uses.

systemd tells every change by a signal; nothing is polled while a unit runs. A supervisor that is restarted reads where
each unit stands and carries on. Whose processes are left is asked of systemd (the unit's cgroup), not guessed.
"""

from __future__ import annotations

import asyncio
import string
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dbus_fast import Message

from ..errors import Dsv41Error, Stage
from ..journal import log
from . import OnExit, UnitState, UnitStatus, unknown_unit
from .bus import BusRefused, SystemBus, plain
from .journal_lines import last_lines
from .procfs import read

SYSTEMD = "org.freedesktop.systemd1"
MANAGER_PATH = "/org/freedesktop/systemd1"
MANAGER = f"{SYSTEMD}.Manager"
UNIT = f"{SYSTEMD}.Unit"
SERVICE = f"{SYSTEMD}.Service"
START_LOOK_S = 3.0
"""How long `start` waits for a first word. Bounded: a unit may wait long for a mount, and its peers' orders may not."""
KILL_WAIT_S = 10.0
LOOK_AGAIN_S = 0.5

_STATES = {
    "active": UnitState.ACTIVE,
    "reloading": UnitState.ACTIVE,
    "refreshing": UnitState.ACTIVE,
    "maintenance": UnitState.ACTIVE,
    "activating": UnitState.ACTIVE,
    "deactivating": UnitState.STOPPING,
    "failed": UnitState.FAILED,
}
_OF_UNIT = ("LoadState", "ActiveState", "InvocationID", "Job", "ActiveEnterTimestampMonotonic")
_OF_SERVICE = ("MainPID", "ExecMainCode", "ExecMainStatus")
_CLD_EXITED = 1
_DENIED = {f"{SYSTEMD}.AccessDenied", "org.freedesktop.DBus.Error.AccessDenied",
           "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"}  # fmt: skip
_UNKNOWN = {f"{SYSTEMD}.NoSuchUnit", f"{SYSTEMD}.LoadFailed"}
_NOTHING_THERE = {f"{SYSTEMD}.NoSuchUnit", f"{SYSTEMD}.NoSuchProcess", f"{SYSTEMD}.UnitInactive",
                  "org.freedesktop.DBus.Error.UnixProcessIdUnknown"}  # fmt: skip


@dataclass(slots=True)
class _Watched:
    """What is known about one unit: the latest value of each property, from signals and from looking."""

    name: str
    path: str
    properties: dict[str, Any] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    told: str = ""
    """Invocation whose end was told, or was over before we came."""
    stopped: str = ""
    """Invocation that we were asked to stop: however it ends, it did not fail."""
    jobs: dict[str, str] = field(default_factory=dict)
    """Results of its latest jobs, by object path."""
    pending: str = ""
    """Job of a start that was not over when `start` returned."""

    @property
    def invocation(self) -> str:
        return bytes(self.properties.get("InvocationID", b"")).hex()

    @property
    def state(self) -> UnitState:
        state = _STATES.get(self.properties.get("ActiveState", ""), UnitState.INACTIVE)
        if state is UnitState.FAILED and self.invocation and self.invocation == self.stopped:
            return UnitState.INACTIVE
        if state in (UnitState.INACTIVE, UnitState.FAILED) and self.properties.get("Job", [0])[0]:
            # Waits for what it is ordered after; it will start, or its job will say why not.
            return UnitState.ACTIVE
        return state

    def merge(self, changed: dict[str, Any]) -> None:
        """Take over new values. An inactive unit is forgotten by systemd; how it ended stays known here."""
        if changed.get("ActiveState") == "inactive" and not changed.get("InvocationID", b"-"):
            changed = {k: v for k, v in changed.items() if k not in ("InvocationID", *_OF_SERVICE)} | {"MainPID": 0}
        self.properties |= changed

    def status(self, members: tuple[int, ...] = ()) -> UnitStatus:
        values = self.properties
        code = values.get("ExecMainCode", 0)
        status = values.get("ExecMainStatus", 0)
        main = values.get("MainPID") or None
        since_us = values.get("ActiveEnterTimestampMonotonic") or 0
        return UnitStatus(
            self.name,
            self.state,
            main,
            None if main is not None or not code else status if code == _CLD_EXITED else -status,
            members,
            self.invocation or None,
            since_us / 1e6 if since_us else None,
        )


class SystemdUnits:
    """Backend that asks systemd. Open it before use."""

    def __init__(self, units: Sequence[str], on_exit: OnExit | None = None) -> None:
        self.on_exit = on_exit
        self._units = {name: _Watched(name, unit_path(f"{name}.service")) for name in units}
        self._by_path = {watched.path: watched for watched in self._units.values()}
        self._looks: dict[str, asyncio.Task[UnitStatus]] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._bus = SystemBus(self._on_signal, self._connected)

    async def open(self) -> None:
        """Connect and see where each unit stands. Raises Dsv41Error when there is no systemd to ask."""
        try:
            await self._bus.open()
        except BusRefused as error:
            raise self._refused(error, "be watched", None) from None

    async def start(self, unit: str) -> None:
        watched = self._watched(unit)
        if (await self.status(unit)).state is UnitState.ACTIVE:
            return
        watched.news.clear()
        before = watched.invocation
        try:
            job = (await self._manager("StartUnit", "ss", f"{unit}.service", "replace"))[0]
        except BusRefused as error:
            raise self._refused(error, "be started", unit) from None
        deadline = time.monotonic() + START_LOOK_S
        while (left := deadline - time.monotonic()) > 0:
            result = watched.jobs.get(job)
            # "failed" is a unit that ran: its end is told like any other.
            if result in ("done", "failed") or (watched.invocation != before and watched.state is UnitState.ACTIVE):
                return
            if result is not None:
                raise self._not_started(unit, result)
            await _wait(watched.news, left)
        watched.pending = job

    async def stop(self, unit: str, timeout_s: float) -> UnitStatus:
        watched = self._watched(unit)
        status = await self.status(unit)
        watched.stopped = watched.invocation
        if status.state in (UnitState.INACTIVE, UnitState.FAILED) and not status.members:
            return watched.status()
        if timeout_s <= 0:
            await self._kill(unit)
        try:
            await self._manager("StopUnit", "ss", f"{unit}.service", "replace")
        except BusRefused as error:
            if error.name not in _NOTHING_THERE:
                raise self._refused(error, "be stopped", unit) from None
        status = await self._until_gone(watched, timeout_s)
        until = time.monotonic() + KILL_WAIT_S
        while not _gone(status) and time.monotonic() < until:
            # By force, until a whole look finds nobody: a process may fork while we kill.
            await self._kill(unit)
            status = await self._until_gone(watched, LOOK_AGAIN_S)
        return status

    async def status(self, unit: str) -> UnitStatus:
        """As the protocol says. Questions of several at once are one look."""
        look = self._looks.get(unit)
        if look is None:
            look = asyncio.ensure_future(self._look(self._watched(unit)))
            self._looks[unit] = look
            look.add_done_callback(lambda _: self._looks.pop(unit, None))
        return await asyncio.shield(look)

    async def tail(self, unit: str, n_lines: int) -> Sequence[str]:
        return await last_lines(f"{unit}.service", n_lines)

    async def going_down(self) -> bool:
        try:
            return await self._bus.get(SYSTEMD, MANAGER_PATH, MANAGER, "SystemState") == "stopping"
        except (BusRefused, Dsv41Error):
            # The bus is among what a shutdown stops; taking a fleet down for good needs more than a guess.
            return True

    async def close(self, *, stop_all: bool) -> None:
        if stop_all:
            async with asyncio.TaskGroup() as group:
                for unit in self._units:
                    group.create_task(self.stop(unit, 5))
        await self._bus.close()
        for task in list(self._telling):
            task.cancel()

    # -- private -------------------------------------------------------------------------------------------------

    def _watched(self, unit: str) -> _Watched:
        if unit not in self._units:
            raise unknown_unit(unit)
        return self._units[unit]

    async def _connected(self) -> None:
        """Ask for the signals, then look: what changes in between is told by one of the two."""
        for watched in self._units.values():
            await self._bus.match(
                f"type='signal',sender='{SYSTEMD}',interface='org.freedesktop.DBus.Properties',path='{watched.path}'"
            )
        await self._bus.match(f"type='signal',sender='{SYSTEMD}',interface='{MANAGER}',member='JobRemoved'")
        # A systemd that re-executed itself has a new name on the bus and may have forgotten who listens.
        await self._bus.match(
            "type='signal',sender='org.freedesktop.DBus',interface='org.freedesktop.DBus',"
            f"member='NameOwnerChanged',arg0='{SYSTEMD}'"
        )
        await self._subscribe()

    async def _subscribe(self) -> None:
        try:
            await self._manager("Subscribe")
        except BusRefused as error:
            if error.name != f"{SYSTEMD}.AlreadySubscribed":
                raise
        first = not any(watched.properties for watched in self._units.values())
        for watched in self._units.values():
            await self._read(watched)
            if first and watched.state in (UnitState.INACTIVE, UnitState.FAILED):
                watched.told = watched.invocation
            self._changed(watched)
            if first and watched.state is UnitState.ACTIVE:
                log.info("%s runs already (pid %s); taking it over", watched.name, watched.properties.get("MainPID"))

    async def _look(self, watched: _Watched) -> UnitStatus:
        await self._read(watched)
        self._changed(watched)
        return watched.status(await self._members(watched))

    async def _read(self, watched: _Watched) -> None:
        wanted = [(UNIT, name) for name in _OF_UNIT] + [(SERVICE, name) for name in _OF_SERVICE]
        try:
            values = await asyncio.gather(*(self._bus.get(SYSTEMD, watched.path, *which) for which in wanted))
        except BusRefused as error:
            raise self._refused(error, "be looked at", watched.name) from None
        watched.merge(dict(zip((name for _, name in wanted), values, strict=True)))

    async def _members(self, watched: _Watched) -> tuple[int, ...]:
        """Living processes in the unit's cgroup, those that outlived it included."""
        try:
            (found,) = await self._bus.call(SYSTEMD, watched.path, SERVICE, "GetProcesses")
        except BusRefused as error:
            if error.name in _NOTHING_THERE:
                return ()
            raise self._refused(error, "be looked at", watched.name) from None
        processes = ((pid, read(pid)) for _, pid, _ in found)
        return tuple(sorted(pid for pid, process in processes if process is not None and not process.dead))

    async def _until_gone(self, watched: _Watched, timeout_s: float) -> UnitStatus:
        deadline = time.monotonic() + timeout_s
        while True:
            watched.news.clear()
            status = await self.status(watched.name)
            left = deadline - time.monotonic()
            if _gone(status) or left <= 0:
                return status
            # A signal tells when the unit changes; that its last process is gone has none.
            await _wait(watched.news, min(left, LOOK_AGAIN_S))

    async def _kill(self, unit: str) -> None:
        try:
            await self._manager("KillUnit", "ssi", f"{unit}.service", "all", 9)
        except BusRefused as error:
            if error.name not in _NOTHING_THERE:
                raise self._refused(error, "be killed", unit) from None

    async def _manager(self, member: str, signature: str = "", *body: Any) -> list[Any]:
        return await self._bus.call(SYSTEMD, MANAGER_PATH, MANAGER, member, signature, *body)

    def _on_signal(self, message: Message) -> None:
        if message.member == "PropertiesChanged":
            watched = self._by_path.get(message.path or "")
            if watched is not None and message.body[0] in (UNIT, SERVICE):
                watched.merge({k: plain(v) for k, v in message.body[1].items() if k in (*_OF_UNIT, *_OF_SERVICE)})
                self._changed(watched)
        elif message.member == "JobRemoved":
            _, job, name, result = message.body
            watched = self._units.get(name.removesuffix(".service"))
            if watched is not None:
                watched.jobs = {**dict(list(watched.jobs.items())[-8:]), job: result}
                watched.news.set()
                if job == watched.pending and result not in ("done", "failed"):
                    log.error("%s", self._not_started(watched.name, result))
                    self._spawn(self._tell(UnitStatus(watched.name, UnitState.FAILED)))
        elif message.member == "NameOwnerChanged" and message.body[2]:
            self._spawn(self._again())

    async def _again(self) -> None:
        try:
            await self._subscribe()
        except (Dsv41Error, BusRefused) as error:
            log.warning("systemd is back on the bus but does not answer: %s", error)

    def _changed(self, watched: _Watched) -> None:
        """After any change: wake who waits, and tell an end once."""
        watched.news.set()
        values = watched.properties
        over = watched.state in (UnitState.INACTIVE, UnitState.FAILED) or (
            watched.state is UnitState.STOPPING and values.get("ExecMainCode", 0) != 0
        )
        invocation = watched.invocation
        if over and not values.get("MainPID") and invocation and invocation != watched.told:
            watched.told = invocation
            if self.on_exit is not None:
                self._spawn(self._tell(watched.status()))

    async def _tell(self, status: UnitStatus) -> None:
        if self.on_exit is not None and (result := self.on_exit(status)) is not None:
            await result

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._telling.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._telling.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("watching units failed", exc_info=task.exception())

    def _not_started(self, unit: str, result: str) -> Dsv41Error:
        return Dsv41Error(
            f"{unit} was not started; systemd says: {result}.", stage=Stage.RANK, transient=True,
            hint=f"See what it needs: systemctl list-dependencies {unit}, and journalctl -u {unit}."
            if result == "dependency" else f"See why: systemctl status {unit}.",
        )  # fmt: skip

    def _refused(self, error: BusRefused, what: str, unit: str | None) -> Dsv41Error:
        """systemd's answer as a sentence."""
        which = unit or "units"
        if error.name in _DENIED:
            return Dsv41Error(
                f"{which} may not {what} by this user: {error}.", stage=Stage.RANK,
                hint="The module's polkit rule allows it for user dsv41-supervisor; check that polkit.service runs, "
                "or run the supervisor as root.",
            )  # fmt: skip
        if error.name in _UNKNOWN:
            return Dsv41Error(
                f"{which} cannot {what}: {error}.", stage=Stage.RANK,
                hint="Run nixos-rebuild switch on this node: services.dsv41 declares its units.",
            )  # fmt: skip
        return Dsv41Error(
            f"{which} cannot {what}: {error} ({error.name}).", stage=Stage.RANK, transient=True,
            hint=f"See systemctl status {which if unit else ''}".rstrip() + ".",
        )  # fmt: skip


def unit_path(name: str) -> str:
    """The object path of a unit. Source: systemd's bus_label_escape: all but letters and digits as _xx."""
    plain_characters = string.ascii_letters + string.digits
    escaped = "".join(
        c if c in plain_characters and not (i == 0 and c.isdigit()) else f"_{ord(c):02x}" for i, c in enumerate(name)
    )
    return f"{MANAGER_PATH}/unit/{escaped}"


def _gone(status: UnitStatus) -> bool:
    return status.state in (UnitState.INACTIVE, UnitState.FAILED) and not status.members


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
    event.clear()
