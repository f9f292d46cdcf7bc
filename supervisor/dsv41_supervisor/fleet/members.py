"""The nodes as the head sees them: this one directly, the others over HTTP. Both have the same orders and status."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from .. import __version__
from ..changes import Changes
from ..errors import Dsv41Error, PeerUnreachable, Refusal, Stage
from ..fabric.facts import NodeFacts
from ..incident.evidence import collect
from ..journal import Event, event, log
from ..node import NodeAgent
from ..rank.phases import Phase
from ..rank.plan import Boot
from ..rank.state import RankState
from ..settings import Settings
from .lease import Hold, Stamp
from .peers import SupervisorClient

EVIDENCE_S = 15.0
STATUS_AGE_S = 0.5
ONCE_MORE_S = 1.5
WATCH_S = 2.0
"""Longest long poll; each one renews the lease of the running boot."""

STOP_ANSWER_S = 75.0
"""Beyond the grace: killing by force, the port, and the memory that comes back."""


def watch_s(settings: Settings) -> float:
    """A lease is renewed at least four times before it runs out."""
    return min(WATCH_S, settings.supervisor.lease_ttl_s / 4)


class LocalMember:
    """The head itself. It renews its own lease, so that a head whose loop stands still loses it as others do."""

    def __init__(self, agent: NodeAgent, changes: Changes) -> None:
        self.name = agent.node
        self.renewed_boot: Callable[[], str | None] = lambda: None
        """Which boot to name when its status is asked for; set by the crew."""
        self._agent = agent
        self._known: tuple[int, float, dict[str, Any]] | None = None
        self._changes = changes
        self._watch_s = watch_s(agent.settings)

    trouble: str | None = None

    @property
    def status(self) -> dict[str, Any] | None:
        """Its status, not older than its last change or STATUS_AGE_S: it is asked for many times a second."""
        version, now = self._agent.changes.version, time.monotonic()
        if self._known is None or self._known[0] != version or now - self._known[1] > STATUS_AGE_S:
            self._known = version, now, self._agent.status()
        return self._known[2]

    @property
    def silent_s(self) -> float:
        return 0.0

    @property
    def lease_left_s(self) -> float:
        return self._agent.leases.left_s(time.monotonic())

    async def prepare(self, boot: Boot, override: tuple[str, ...] = ()) -> None:
        self._agent.prepare(boot, self._agent.lease.stamp(), override)

    async def fabric(self) -> NodeFacts:
        return await self._agent.fabric.read()

    async def start(self, boot_id: str) -> None:
        await self._agent.start_rank(boot_id)

    async def stop(self, generation: int, why: str, grace_s: float, keep_waiting: bool = False) -> dict[str, Any]:
        return await self._agent.stop_rank(why, grace_s, keep_waiting, generation)

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
            await self._agent.changes.newer_than(seen, self._watch_s)
            if self._agent.changes.version != seen:
                seen = self._agent.changes.version
                self._changes.bump()
            if (boot := self.renewed_boot()) is not None:
                try:
                    self._agent.renew(boot, self._agent.lease.stamp())
                except ValueError as error:
                    log.debug("own lease not renewed: %s", error)


class RemoteMember:
    """Another node, through its supervisor's API."""

    def __init__(self, settings: Settings, node: str, key: str, changes: Changes) -> None:
        self.name = node
        self.status: dict[str, Any] | None = None
        self.renewed_boot: Callable[[], str | None] = lambda: None
        self._watch_s = watch_s(settings)
        self.trouble: str | None = None
        """Why what answers there is of no use: another key, another version, no supervisor at all."""
        self._settings = settings
        self._orders = SupervisorClient(settings, node, key)
        self._watching = SupervisorClient(settings, node, key)
        self._changes = changes
        self._heard_at_s = time.monotonic()
        self._due_s = 0.0

    @property
    def silent_s(self) -> float:
        return max(0.0, time.monotonic() - self._heard_at_s - self._due_s)

    @property
    def lease_left_s(self) -> float:
        """For how long at most a lease of this node can still run: each renewal answers to a status heard before it."""
        return max(0.0, self._heard_at_s + self._settings.supervisor.lease_ttl_s - time.monotonic())

    async def prepare(self, boot: Boot, override: tuple[str, ...] = ()) -> None:
        stamp = self.status["stamp"] if self.status is not None else ""
        asked = {"boot": boot.to_json(), "stamp": stamp, "settings_hash": self._settings.hash,
                 "override": list(override)}  # fmt: skip
        await self._orders.call("POST", "/node/prepare", asked)

    async def fabric(self) -> NodeFacts:
        """What stage 2 saw there. Raises ValueError when the facts break their bounds."""
        return NodeFacts.model_validate((await self._orders.call("GET", "/node/fabric", timeout_s=30))["facts"])

    async def start(self, boot_id: str) -> None:
        await self._orders.call("POST", "/node/start", {"boot": boot_id})

    async def stop(self, generation: int, why: str, grace_s: float, keep_waiting: bool = False) -> dict[str, Any]:
        body = {"why": why, "grace_s": grace_s, "keep_waiting": keep_waiting, "generation": generation}
        answer = await self._orders.call("POST", "/node/stop", body, timeout_s=grace_s + STOP_ANSWER_S)
        try:
            Hold(answer["hold"]), Stamp.parse(answer["stamp"]), int(answer["highest_generation"])
            understood = isinstance(answer["members"], list) and isinstance(answer["port_free"], bool)
        except (KeyError, TypeError, ValueError, AttributeError):
            understood = False
        if not understood:
            raise Dsv41Error(
                f"{self.name} did not say what is left there, as a dsv41 supervisor does.", stage=Stage.RANK,
                node=self.name, hint="Check that dsv41-supervisor there is of the head's version.",
            )  # fmt: skip
        return answer

    async def drain(self) -> None:
        await self._orders.call("POST", "/node/drain", {})

    async def measure(self) -> dict[str, Any]:
        return await self._orders.call("GET", "/node/measure")

    async def tail(self, unit: str, n_lines: int) -> list[str]:
        answer = await self._orders.call("GET", f"/node/logs?unit={unit}&lines={n_lines}")
        return [str(line) for line in answer.get("lines", ())]

    async def evidence(self) -> dict[str, Any]:
        return await self._orders.call("GET", "/node/evidence", timeout_s=EVIDENCE_S)

    async def close(self) -> None:
        await self._orders.close()
        await self._watching.close()

    async def watch(self) -> None:
        """Long-poll the node's status for ever; renews the lease of the boot that the head means."""
        since, failed = 0, False
        timeout_s = self._settings.supervisor.peer_timeout_s
        while True:
            # After a failure it is asked without waiting for news: several such tries fit into the time, and a process
            # that itself stood still finds the first one run out of time unheard. A silent node has all the time again.
            again = failed and self.status is not None
            wait_s = 0.0 if again else self._watch_s
            self._due_s = wait_s
            boot, stamp = self.renewed_boot(), self.status["stamp"] if self.status is not None else None
            renewal = f"&boot={boot}&stamp={stamp}" if boot is not None and stamp is not None else ""
            try:
                answer = await self._watching.call(
                    "GET", f"/node/watch?since={0 if again else since}&wait_s={wait_s}{renewal}",
                    timeout_s=min(timeout_s, ONCE_MORE_S) if again else wait_s + timeout_s,
                )
                if (strange := not_understood(answer)) is not None:
                    raise Dsv41Error(
                        strange, stage=Stage.RANK, node=self.name,
                        hint="Run nixos-rebuild switch on every node from the same flake.lock.",
                    )  # fmt: skip
            except Dsv41Error as error:
                self._due_s = 0.0
                if isinstance(error, PeerUnreachable):
                    self.trouble = None
                elif self.trouble != error.refusals[0].what:
                    # Once, and not at every try.
                    self.trouble = error.refusals[0].what
                    event(Event.PEER_REFUSED, str(error), logging.WARNING, stage=Stage.RANK, peer=self.name)
                    self._changes.bump()
                failed = True
                if self.status is not None and self.silent_s > timeout_s:
                    if not again:
                        continue
                    log.warning("%s has been silent for %.1f s", self.name, self.silent_s)
                    self.status, since = None, 0
                    self._changes.bump()
                await asyncio.sleep(0.25 if isinstance(error, PeerUnreachable) else 1)
                continue
            self._heard_at_s = time.monotonic()
            self.trouble, failed = None, False
            if self.status is None or answer["version"] != since:
                self.status, since = answer, int(answer["version"])
                self._changes.bump()
            else:
                self.status = answer


def not_understood(answer: Mapping[str, Any]) -> str | None:
    """Why a node's status cannot be read here; None when it can. Whatever is decided on is looked at, so that a
    supervisor of another version is named and does not end this one's loop.
    """
    try:
        rank, prepare = answer["rank"], answer["prepare"]
        RankState(rank["state"]), Phase(rank["phase"]), int(answer["version"]), int(answer["highest_generation"])
        Hold(answer["hold"]), Stamp.parse(answer["stamp"])
        said = [str(rank["sentence"]), *map(str, rank["last_lines"]), *answer["same"].keys(), answer["same"].values()]
        boot = answer["boot"] is None or Boot.from_json(answer["boot"])
        refusals = [Refusal.from_json(r) for r in prepare["refusals"]]
        _ = said, boot, refusals, rank["reason"], rank["refused"], prepare["boot"], prepare["state"], prepare["stage"]
        return None
    except (KeyError, TypeError, ValueError, AttributeError):
        supervisor = answer.get("supervisor")
        version = supervisor.get("version", "unknown") if isinstance(supervisor, Mapping) else "unknown"
        return f"its supervisor (version {version}) speaks another version than the head's ({__version__})."


Member = LocalMember | RemoteMember
"""One node. `status` is the last one heard, None when it is silent; `silent_s` counts from when it was due."""
