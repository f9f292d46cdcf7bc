"""The order of `dsv41 doctor --deep`: pings and TCP on all rails at once, RDMA writes one by one, then all ranks.

The supervisors at both ends do the work; this side asks, waits within bounds and collects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from ...errors import Dsv41Error
from ...fleet.peers import SupervisorClient, read_fleet_key
from ...settings import Settings
from ..fleet_facts import DeepFacts, Ran, Traffic
from .paths import Path, rail_paths

PING_S = 10.0
ECHO_S = 5.0
RDMA_S = 20.0
COLLECTIVE_S = 60.0
"""Importing torch takes ten seconds of it on a slow machine; a collective that hangs would take NCCL's ten minutes."""
CLOCK_S = 8.0
ANSWER_S = 15.0
"""Beyond a test's own bound, until an answer is given up."""

Show = Callable[[str], None]


async def run_deep(settings: Settings, nodes: Sequence[str], key_node: str, show: Show) -> dict[str, DeepFacts]:
    """All tests between the nodes whose supervisors answered. Never raises for a test that fails: that is a result."""
    session = _Session(settings, nodes, read_fleet_key(settings, key_node), show)
    try:
        return await session.run()
    finally:
        await session.close()


class _Session:
    def __init__(self, settings: Settings, nodes: Sequence[str], key: str, show: Show) -> None:
        self._settings = settings
        self._nodes = list(nodes)
        self._clients = {node: SupervisorClient(settings, node, key) for node in nodes}
        self._show = show
        self._traffic: dict[str, list[Traffic]] = {node: [] for node in nodes}
        self._ran: dict[str, list[Ran]] = {node: [] for node in nodes}

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def run(self) -> dict[str, DeepFacts]:
        paths = rail_paths(self._settings, self._nodes)
        if not paths:
            self._show("no rails between nodes that answered: nothing to send")
        for test, seconds in (("warm-up", PING_S), ("mtu-ping", PING_S), ("tcp-echo", ECHO_S)):
            if paths:
                self._show(f"{test} on {len(paths)} directions")
                await asyncio.gather(*(self._one(test, path, seconds) for path in paths))
            if test == "warm-up":
                # Nothing else comes through where not even a small ping does; it would only be waited for.
                paths = [path for path in paths if not self._silent(path)]
        for number, path in enumerate(paths, 1):
            if self._settings.fleet.nodes[path.source].rails[path.rail].rdma_device is not None:
                self._show(f"RDMA write {number} of {len(paths)}: {path.name}")
                await self._one("rdma-write", path, RDMA_S)
        await self._together()
        return {
            node: DeepFacts(node=node, traffic=tuple(self._traffic[node]), ran=tuple(self._ran[node]))
            for node in self._nodes
        }

    # -- one rail, one direction ---------------------------------------------------------------------------------

    async def _one(self, test: str, path: Path, seconds: float) -> None:
        result = await self._send(test, path, seconds)
        self._traffic[path.source].append(result)

    def _silent(self, path: Path) -> bool:
        return any(
            one.problem is not None and (one.rail, one.target) == (path.rail, path.target)
            for one in self._traffic[path.source]
        )

    async def _send(self, test: str, path: Path, seconds: float) -> Traffic:
        about: dict[str, Any] = {"test": test, "rail": path.rail, "source": path.source, "target": path.target}
        door: dict[str, Any] = {}
        try:
            if test in ("tcp-echo", "rdma-write"):
                asked = {"test": test, "rail": path.rail, "seconds": seconds + ANSWER_S}
                door = await self._call(path.target, "/doctor/listen", asked, ANSWER_S)
                if "port" not in door:
                    said = {name: door[name] for name in ("problem", "skipped", "verdict") if name in door}
                    return Traffic(**about, **said)
            body = {
                "test": test, "rail": path.rail, "target": path.target, "port": door.get("port", 0),
                "token": door.get("token", ""), "seconds": seconds,
            }  # fmt: skip
            raw = await self._call(path.source, "/doctor/send", body, seconds + ANSWER_S)
            return Traffic.model_validate(raw)
        except Dsv41Error as error:
            return Traffic(**about, problem=error.refusals[0].what[:300])
        except (ValidationError, TypeError) as error:
            return Traffic(**about, problem=f"an answer that cannot be read ({type(error).__name__})")

    # -- all ranks together ----------------------------------------------------------------------------------------

    async def _together(self) -> None:
        missing = [node for node in self._settings.fleet.in_rank_order if node not in self._clients]
        if missing:
            why = f"{', '.join(missing)} did not answer, and a collective needs every rank"
            for node in self._nodes:
                self._ran[node].append(Ran(test="collective", skipped=why))
        else:
            self._show(
                f"a collective of {len(self._nodes)} ranks in the engine's environment, {COLLECTIVE_S:g} s at most"
            )
            await self._everywhere("collective", COLLECTIVE_S)
        self._show("clocks under load")
        await self._everywhere("clock", CLOCK_S)

    async def _everywhere(self, test: str, seconds: float) -> None:
        port = 0
        try:
            if test == "collective":
                head = self._settings.fleet.head
                asked = {"test": test, "rail": "", "seconds": seconds}
                port = int((await self._call(head, "/doctor/listen", asked, ANSWER_S))["port"])
        except Dsv41Error as error:
            for node in self._nodes:
                self._ran[node].append(Ran(test=test, problem=error.refusals[0].what[:300]))
            return
        done = await asyncio.gather(*(self._program(node, test, port, seconds) for node in self._nodes))
        for node, result in zip(self._nodes, done, strict=True):
            self._ran[node].append(result)

    async def _program(self, node: str, test: str, port: int, seconds: float) -> Ran:
        try:
            body = {"test": test, "port": port, "seconds": seconds}
            return Ran.model_validate(await self._call(node, "/doctor/run", body, seconds + 2 * ANSWER_S))
        except Dsv41Error as error:
            return Ran(test=test, problem=error.refusals[0].what[:300])
        except (ValidationError, TypeError) as error:
            return Ran(test=test, problem=f"an answer that cannot be read ({type(error).__name__})")

    async def _call(self, node: str, path: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        return await self._clients[node].call("POST", path, body, timeout_s=timeout_s)
