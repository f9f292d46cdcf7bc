"""The nodes as the head sees them: this one directly, the others over HTTP. Both have the same orders and status."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ..changes import Changes
from ..errors import Dsv41Error, PeerUnreachable
from ..incident.evidence import collect
from ..journal import log
from ..node import NodeAgent
from ..rank.plan import Boot
from ..settings import Settings
from .peers import SupervisorClient

EVIDENCE_S = 15.0
WATCH_S = 2.0
"""Longest long poll; each one renews the lease of the running boot."""


class LocalMember:
    """The head itself. It renews its own lease, so that a head whose loop stands still loses it as others do."""

    def __init__(self, agent: NodeAgent, changes: Changes) -> None:
        self.name = agent.node
        self.lease_boot: str | None = None
        self._agent = agent
        self._changes = changes

    @property
    def status(self) -> dict[str, Any] | None:
        return self._agent.status()

    @property
    def silent_s(self) -> float:
        return 0.0

    async def prepare(self, boot: Boot) -> None:
        self._agent.prepare(boot)

    async def start(self, boot_id: str) -> None:
        await self._agent.start_rank(boot_id)

    async def stop(self, why: str, grace_s: float, keep_waiting: bool = False) -> dict[str, Any]:
        return await self._agent.stop_rank(why, grace_s, keep_waiting)

    async def drain(self) -> None:
        self._agent.drain()

    async def measure(self) -> dict[str, Any]:
        return await self._agent.measure()

    async def tail(self, unit: str, n_lines: int) -> list[str]:
        return await self._agent.tail(unit, n_lines)

    async def evidence(self) -> dict[str, Any]:
        return await collect(self._agent)

    async def watch(self) -> None:
        seen = 0
        while True:
            await self._agent.changes.newer_than(seen, WATCH_S)
            if self._agent.changes.version != seen:
                seen = self._agent.changes.version
                self._changes.bump()
            if self.lease_boot is not None:
                try:
                    self._agent.renew(self.lease_boot)
                except ValueError as error:
                    log.debug("own lease not renewed: %s", error)


class RemoteMember:
    """Another node, through its supervisor's API."""

    def __init__(self, settings: Settings, node: str, key: str, changes: Changes) -> None:
        self.name = node
        self.status: dict[str, Any] | None = None
        self.lease_boot: str | None = None
        self._settings = settings
        self._orders = SupervisorClient(settings, node, key)
        self._watching = SupervisorClient(settings, node, key)
        self._changes = changes
        self._heard_at_s = time.monotonic()
        self._due_s = 0.0

    @property
    def silent_s(self) -> float:
        return max(0.0, time.monotonic() - self._heard_at_s - self._due_s)

    async def prepare(self, boot: Boot) -> None:
        await self._orders.call("POST", "/node/prepare", {"boot": boot.to_json(), "settings_hash": self._settings.hash})

    async def start(self, boot_id: str) -> None:
        await self._orders.call("POST", "/node/start", {"boot": boot_id})

    async def stop(self, why: str, grace_s: float, keep_waiting: bool = False) -> dict[str, Any]:
        body = {"why": why, "grace_s": grace_s, "keep_waiting": keep_waiting}
        return await self._orders.call("POST", "/node/stop", body, timeout_s=grace_s + 40)

    async def drain(self) -> None:
        await self._orders.call("POST", "/node/drain", {})

    async def measure(self) -> dict[str, Any]:
        return await self._orders.call("GET", "/node/measure")

    async def tail(self, unit: str, n_lines: int) -> list[str]:
        answer = await self._orders.call("GET", f"/node/logs?unit={unit}&lines={n_lines}")
        return [str(line) for line in answer["lines"]]

    async def evidence(self) -> dict[str, Any]:
        return await self._orders.call("GET", "/node/evidence", timeout_s=EVIDENCE_S)

    async def close(self) -> None:
        await self._orders.close()
        await self._watching.close()

    async def watch(self) -> None:
        """Long-poll the node's status for ever; renews the lease of the boot that the head means."""
        since = 0
        timeout_s = self._settings.supervisor.peer_timeout_s
        while True:
            self._due_s = WATCH_S
            boot = f"&boot={self.lease_boot}" if self.lease_boot is not None else ""
            try:
                answer = await self._watching.call(
                    "GET", f"/node/watch?since={since}&wait_s={WATCH_S}{boot}", timeout_s=WATCH_S + timeout_s
                )
            except PeerUnreachable:
                self._due_s = 0.0
                if self.status is not None and self.silent_s > timeout_s:
                    log.warning("%s has been silent for %.1f s", self.name, self.silent_s)
                    self.status, since = None, 0
                    self._changes.bump()
                await asyncio.sleep(0.25)
                continue
            except Dsv41Error as error:
                log.warning("%s: %s", self.name, error)
                await asyncio.sleep(1)
                continue
            self._heard_at_s = time.monotonic()
            if self.status is None or answer["version"] != since:
                self.status, since = answer, int(answer["version"])
                self._changes.bump()
            else:
                self.status = answer


Member = LocalMember | RemoteMember
"""One node. `status` is the last one heard, None when it is silent; `silent_s` counts from when it was due."""
