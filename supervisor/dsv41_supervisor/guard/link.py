"""The supervisor's end of the guard: starts it, tells it which rank to watch, hears what it saw.

The guard runs as unit dsv41-guard and outlives this supervisor. What it says is read as it comes; `heard_kill` also
reads what has come already, so that whoever sees a rank's death learns its reason in the same instant.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import Dsv41Error, Stage
from ..journal import log
from ..settings import Settings, UnitBackend
from ..units import Units
from .process import MAX_MESSAGE_BYTES, N_SAMPLES

GUARD_UNIT = "dsv41-guard"
CONNECT_S = 10.0
RETRY_S = 0.5
ALONE_S = 30.0
"""A guard without supervisor and without rank goes away, where nobody else would ever stop it (child processes)."""

Message = dict[str, Any]


def socket_path(settings: Settings, node: str) -> Path:
    """In the state directory, which belongs to the supervisor's user alone: no rank can stand in for the guard."""
    return settings.state_dir(node) / "guard.sock"


def configuration(settings: Settings, node: str) -> dict[str, Any]:
    """What the guard goes by. No secret is in it."""
    guard = settings.guard
    return {
        "floor_bytes": guard.floor_bytes,
        "warn_bytes": guard.warn_at_bytes,
        "period_s": guard.period_s,
        "cgroup_dir": str(settings.path(guard.cgroup_dir, node)) if guard.cgroup_dir is not None else None,
        "exit_alone_s": ALONE_S if settings.supervisor.units is UnitBackend.PROCESS else None,
    }


def guard_argv(settings: Settings, node: str) -> list[str]:
    """How the guard is started: the interpreter without site-packages, and one JSON object."""
    program = Path(__file__).with_name("__main__.py")
    config = configuration(settings, node) | {"socket": str(socket_path(settings, node))}
    return [sys.executable, "-I", "-S", str(program), json.dumps(config)]


def kill_sentence(kill: Message) -> str:
    """What happened, for people. Source of the figures: the guard's own look."""
    return (
        f"{kill['source']} is {kill['available'] / 2**30:.2f} GiB, below the floor of {kill['floor'] / 2**30:.2f} GiB: "
        f"killing rank {kill['rank']}"
    )


class GuardLink:
    """One connection to the guard, made anew when it breaks. Lives in one event loop."""

    def __init__(self, settings: Settings, node: str, units: Units, on_message: Callable[[Message], None]) -> None:
        self._settings = settings
        self._node = node
        self._units = units
        self._on_message = on_message
        self._socket: socket.socket | None = None
        self._inbox: deque[Message] = deque()
        self._news = asyncio.Event()
        self._watching: dict[str, Any] | None = None
        self.samples: deque[list[float]] = deque(maxlen=2 * N_SAMPLES)
        self.hello: Message = {}
        self._n_no_memory = 0
        self.kills: dict[str, Message] = {}
        """The guard's kills by boot."""
        self.lost_at_s: float | None = time.monotonic()

    @property
    def connected(self) -> bool:
        return self._socket is not None

    async def run(self) -> None:
        """Keep the guard running and connected until cancelled."""
        said = False
        try:
            while True:
                if self._socket is None:
                    problem = await self._connect()
                    if problem is not None:
                        if not said:
                            said = True
                            log.error("the memory guard cannot be reached: %s", problem)
                        await asyncio.sleep(RETRY_S)
                        continue
                    said = False
                await self._news.wait()
                self._news.clear()
                while self._inbox:
                    self._on_message(self._inbox.popleft())
        finally:
            self.close()

    def close(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(sock)
            sock.close()
            self.lost_at_s = time.monotonic()
        self._news.set()

    async def require(self) -> None:
        """Wait until the guard is there. Raises Dsv41Error: no rank is started unguarded."""
        deadline = time.monotonic() + CONNECT_S
        while self._socket is None:
            if time.monotonic() > deadline:
                lines = [line for line in await self._units.tail(GUARD_UNIT, 5) if line.strip()]
                raise Dsv41Error(
                    f"the memory guard does not run{': ' + lines[-1] if lines else ''}.", stage=Stage.RANK,
                    node=self._node, transient=True,
                    hint=f"No rank is started without it. See unit {GUARD_UNIT} on {self._node}.",
                )  # fmt: skip
            await asyncio.sleep(0.05)

    def watch(self, unit: str, rank: int, boot: str, pid: int, start_ticks: int) -> None:
        """Watch this rank from now on; told again to a guard that is started anew."""
        self._watching = {"unit": unit, "rank": rank, "boot": boot, "pid": pid, "start_ticks": start_ticks}
        self._say({"watch": self._watching})

    def heard_kill(self, boot: str | None) -> Message | None:
        """The guard's kill in this boot, if there was one; reads what has come already."""
        if self._socket is not None:
            self._read()
        return self.kills.get(boot) if boot is not None else None

    def status(self) -> dict[str, Any]:
        """For `dsv41 status` and for bundles."""
        facts = self.hello.get("facts", {})
        last = self.samples[-1] if self.samples else None
        return {
            "connected": self.connected,
            "pid": self.hello.get("pid"),
            "hardening": facts.get("hardening", {}),
            "killers": facts.get("killers", []),
            "kernel_log": facts.get("kmsg_missing") or "read",
            "available_bytes": last[1] if last else None,
            "psi_full_percent": last[6] if last else None,
            "gpu_no_memory": self._n_no_memory,
        }

    # -- private -----------------------------------------------------------------------------------------------------

    async def _connect(self) -> str | None:
        """One try; starts the guard when nobody answers. Returns why it did not work."""
        path = socket_path(self._settings, self._node)
        problem = self._open(path)
        if problem is None:
            return None
        try:
            await self._units.start(GUARD_UNIT)
        except (Dsv41Error, KeyError) as error:
            return str(error)
        for _ in range(40):
            await asyncio.sleep(0.05)
            problem = self._open(path)
            if problem is None:
                return None
        return problem

    def _open(self, path: Path) -> str | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
            try:
                # An address holds 107 bytes; through the directory's descriptor any path is short.
                sock.connect(f"/proc/self/fd/{directory}/{path.name}")
            finally:
                os.close(directory)
        except OSError as error:
            sock.close()
            return f"{path}: {error.strerror}"
        sock.setblocking(False)
        self._socket, self.lost_at_s = sock, None
        asyncio.get_running_loop().add_reader(sock, self._read)
        configure = {"configure": configuration(self._settings, self._node)}
        self._say(configure | ({"watch": self._watching} if self._watching else {}))
        return None

    def _say(self, message: Message) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send(json.dumps(message).encode(), socket.MSG_NOSIGNAL)
        except OSError as error:
            log.error("the memory guard does not listen: %s", error.strerror)
            self.close()

    def _read(self) -> None:
        while self._socket is not None:
            try:
                text = self._socket.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                text = b""
            if not text:
                self.close()
                return
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._take(json.loads(text))

    def _take(self, message: Message) -> None:
        what = message["what"]
        if what == "sample":
            self.samples.append(message["sample"])
            return
        if what == "hello":
            self.hello = message
            self._n_no_memory = message["counts"]["gpu_no_memory"]
            known = self.samples[-1][0] if self.samples else 0.0
            self.samples.extend(s for s in message.pop("samples") if s[0] > known)
            if message.get("last_kill"):
                self._remember(message["last_kill"])
        elif what in ("killed", "killed-whom"):
            self._remember(message)
        elif message.get("kind") == "gpu-no-memory":
            self._n_no_memory = message["n"]
        self._inbox.append(message)
        self._news.set()

    def _remember(self, kill: Message) -> None:
        self.kills = {boot: known for boot, known in list(self.kills.items())[-3:]} | {str(kill["boot"]): kill}


def samples_table(samples: Sequence[Sequence[float]]) -> list[str]:
    """Samples as lines for a bundle: time, GiB, percent."""
    lines = ["time      available  free  cached  swap-free GiB   psi some/full %"]
    for at, available, free, cached, swap, some, full in samples:
        stamp = time.strftime("%H:%M:%S", time.localtime(at))
        gib = [value / 2**30 for value in (available, free, cached, swap)]
        lines.append(f"{stamp} {gib[0]:9.2f} {gib[1]:7.2f} {gib[2]:7.2f} {gib[3]:7.2f} {some:10.1f} {full:6.1f}")
    return lines
