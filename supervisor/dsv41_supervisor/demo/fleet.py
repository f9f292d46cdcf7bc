"""The demo's processes: a supervisor on every node and the gateway on the head. Plays the part of each node's init."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from ..deadline import Deadline
from ..errors import Dsv41Error, Exit, PeerUnreachable, Stage
from ..fleet.peers import SupervisorClient
from ..settings import Settings
from .ended import hint, sentence
from .network import Network

SUPERVISOR_START_S = 30
GATEWAY_START_S = 20
STOP_S = 10
STOP_FLEET_S = 40


@dataclass(slots=True)
class Daemon:
    """One process that the demo started, and its log."""

    name: str
    node: str
    process: asyncio.subprocess.Process
    log_path: Path
    ended_at: float | None = None

    async def watch(self) -> None:
        """Whoever asks may ask late: how old its last errors are counts from its end."""
        await self.process.wait()
        self.ended_at = time.time()

    def lines(self) -> list[str]:
        """Of its log, those that say something."""
        with contextlib.suppress(OSError):
            return [line for line in self.log_path.read_text(errors="replace").splitlines() if line.strip()]
        return []


class DaemonEnded(Dsv41Error):
    """One of the demo's processes is gone, and stays gone."""


@dataclass(slots=True)
class DemoFleet:
    """Supervisors and gateway of one demo. `stop` leaves no process; the network checks that."""

    settings: Settings
    settings_path: Path
    network: Network
    state_root: Path
    daemons: list[Daemon] = field(default_factory=list)
    _watching: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def start_supervisors(self) -> None:
        """Start every node's supervisor and wait until all answer. Raises with the log of one that ended."""
        for node in self.settings.fleet.in_rank_order:
            await self.start_daemon("supervisor", node)
        deadline = Deadline.after(SUPERVISOR_START_S, "the supervisors to answer", stage=Stage.CONFIG)
        for node in self.settings.fleet.in_rank_order:
            async with SupervisorClient(self.settings, node) as client:
                while not await self._answers(client):
                    if deadline.expired:
                        raise deadline.error(f"{node} is silent")
                    await asyncio.sleep(0.1)

    async def start_gateway(self) -> None:
        """Start the gateway on the head and wait until it listens."""
        gateway = await self.start_daemon("gateway", self.settings.fleet.head)
        deadline = Deadline.after(GATEWAY_START_S, "the gateway to listen", stage=Stage.GATEWAY)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            while True:
                self._check_alive(gateway)
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                    async with session.get(f"{self.endpoint}/health"):
                        return
                if deadline.expired:
                    raise deadline.error("; ".join(gateway.lines()[-1:]))
                await asyncio.sleep(0.1)

    @property
    def endpoint(self) -> str:
        return f"http://{self.settings.gateway.address}:{self.settings.gateway.port}"

    async def status(self, client: SupervisorClient) -> dict[str, Any]:
        """The head's status. Raises with the log of a daemon that ended meanwhile."""
        for daemon in self.daemons:
            self._check_alive(daemon)
        return await client.call("GET", "/status", timeout_s=15)

    async def stop(self) -> None:
        """Ranks first, through the head; then every supervisor, and what does not end in time by force."""
        with contextlib.suppress(Dsv41Error, TimeoutError):
            async with asyncio.timeout(STOP_FLEET_S), SupervisorClient(self.settings, self.settings.fleet.head) as head:
                await head.call("POST", "/fleet/down", {"by": "dsv41 demo"})
                while (await head.call("GET", "/status", timeout_s=15))["state"] not in ("down", "failed"):
                    await asyncio.sleep(0.1)
        for daemon in self.daemons:
            if daemon.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    daemon.process.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                await asyncio.wait_for(daemon.process.wait(), STOP_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    daemon.process.kill()
                await daemon.process.wait()
        self.daemons.clear()

    async def start_daemon(self, what: str, node: str) -> Daemon:
        """Start one daemon of a node; returns at once."""
        log_path = self.state_root / node / f"{what}.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        argv = [
            sys.executable, "-m", "dsv41_supervisor", what, "--settings", str(self.settings_path), "--node", node,
        ]  # fmt: skip
        with log_path.open("wb") as log:
            # A session of its own: Ctrl-C reaches the demo alone, which then stops everything in order.
            process = await asyncio.create_subprocess_exec(
                *self.network.argv_in(node, argv), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        daemon = Daemon(what, node, process, log_path)
        self.daemons.append(daemon)
        watching = asyncio.create_task(daemon.watch())
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        return daemon

    async def _answers(self, client: SupervisorClient) -> bool:
        for daemon in self.daemons:
            self._check_alive(daemon)
        try:
            await client.call("GET", "/node/measure", timeout_s=2)
        except PeerUnreachable:
            return False
        return True

    def _check_alive(self, daemon: Daemon) -> None:
        if daemon.process.returncode is None:
            return
        code = daemon.process.returncode
        raise DaemonEnded(
            sentence(f"the {daemon.name} of {daemon.node}", code, daemon.lines(), daemon.ended_at or time.time()),
            stage=Stage.GATEWAY if daemon.name == "gateway" else Stage.CONFIG,
            node=daemon.node,
            hint=hint(code, daemon.log_path),
            transient=code == Exit.UNAVAILABLE,
        )
