"""A supervisor's part in `dsv41 doctor --deep`: open a door for a moment, send through another's, run a rank's part.

Every listener closes by itself, every program is stopped with what it started, and nothing of a test stays behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ...errors import Dsv41Error, Stage
from ...fabric.facts import NodeFacts
from ...fabric.gids import find_gid
from ...fabric.rdma import read_rdma
from ...fabric.roots import Roots
from ...journal import log
from ...rank.plan import Boot, launch_plan
from ...settings import Device, EngineKind, Settings
from ...units import Units, UnitState
from ..fleet_facts import Ran, Traffic
from . import rdma
from .echo import PAYLOAD_BYTES, EchoListener, echo
from .ping import Pinged, ping
from .probe import PROBE_UNIT, clear, write_request

MAX_LISTENERS = 64
MAX_SECONDS = 120.0
WARM_UPS = 4
"""Source: users.md F9: four pings per pair before the first RDMA write."""
PING_WAIT_S = 1.0
RDMA_SECONDS = 3
_PASSED_PREFIXES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "UCX_")
_LOOK_S = 0.05


class DeepServer:
    """One node's end of the deep tests. Lives in the supervisor's event loop."""

    def __init__(
        self,
        settings: Settings,
        node: str,
        units: Units,
        rank_state: Callable[[], str],
        launch_facts: Callable[[], Awaitable[NodeFacts]],
        roots: Roots | None = None,
    ) -> None:
        self._settings = settings
        self._node = node
        self._units = units
        self._rank_state = rank_state
        self._launch_facts = launch_facts
        self._roots = roots or Roots()
        self._listeners: set[EchoListener] = set()
        self._servers: set[asyncio.Task[Any]] = set()
        self._program = asyncio.Lock()

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        for task in self._servers:
            task.cancel()

    # -- the listening end ---------------------------------------------------------------------------------------

    async def listen(self, test: str, rail: str, seconds: float) -> dict[str, Any]:
        """Open one end for at most `seconds`. Answers port and token, or `skipped` with the reason."""
        seconds = _bounded(seconds)
        if test == "tcp-echo":
            return await self._listen_echo(self._address(rail), seconds)
        if test == "rdma-write":
            return await self._listen_rdma(rail, self._address(rail), seconds)
        if test == "collective":
            return {"port": self._free_rendezvous_port()}
        raise ValueError(f"there is nothing to listen for in the test {test!r}")

    async def _listen_echo(self, address: str, seconds: float) -> dict[str, Any]:
        self._listeners = {listener for listener in self._listeners if listener.is_open}
        if len(self._listeners) >= MAX_LISTENERS:
            raise ValueError(f"{MAX_LISTENERS} listeners are open; wait until they close by themselves")
        listener = EchoListener(address)
        try:
            await listener.open(seconds)
        except OSError as error:
            return {"problem": f"{self._node} cannot listen on {address}: {os.strerror(error.errno or 0)}"}
        self._listeners.add(listener)
        return {"port": listener.port, "token": listener.token}

    async def _listen_rdma(self, rail: str, address: str, seconds: float) -> dict[str, Any]:
        end = await self._rdma_end(rail)
        if "device" not in end:
            return end
        port = _free_port(address)
        command = rdma.argv(end["device"], end["gid_index"], port, RDMA_SECONDS)
        self._in_background(rdma.run(command, seconds))
        return {"port": port}

    # -- the sending end -----------------------------------------------------------------------------------------

    async def send(self, test: str, rail: str, target: str, port: int, token: str, seconds: float) -> Traffic:
        """One test from this node's end of a rail to another node's."""
        here, there = self._address(rail), self._address(rail, target)
        seconds = _bounded(seconds)
        result: dict[str, Any]
        if test == "warm-up":
            result = _pinged(await _ping(here, there, count=WARM_UPS, wait_s=min(PING_WAIT_S, seconds)))
        elif test == "mtu-ping":
            mtu = self._settings.fleet.mtu
            result = _pinged(
                await _ping(here, there, packet_bytes=mtu, count=2, wait_s=min(PING_WAIT_S, seconds), fragment=False)
            )
        elif test == "tcp-echo":
            done = await echo(here, there, port, token, seconds=seconds)
            rate = PAYLOAD_BYTES * 2 / done.took_s / 1e6 if done.problem is None else None
            result = {"problem": done.problem, "connected": done.connected, "figure": rate}
        elif test == "rdma-write":
            result = await self._write(rail, there, port, seconds)
        else:
            raise ValueError(f"there is no test {test!r}")
        return Traffic(test=test, rail=rail, source=self._node, target=target, **result)

    async def _write(self, rail: str, there: str, port: int, seconds: float) -> dict[str, Any]:
        end = await self._rdma_end(rail)
        if "device" not in end:
            return end
        # The other end needs a moment until it listens, and cannot be asked without taking its one connection.
        text, until = "", time.monotonic() + seconds
        while time.monotonic() < until:
            command = rdma.argv(end["device"], end["gid_index"], port, RDMA_SECONDS, server=there)
            text = await rdma.run(command, max(0.1, until - time.monotonic()))
            if "connect" not in text.lower() or rdma.parse(text).average_gbit_s is not None:
                break
            await asyncio.sleep(0.3)
        found = rdma.parse(text, RDMA_SECONDS)
        return {
            "problem": (found.problem or "")[:280] or None, "figure": found.average_gbit_s,
            "verdict": str(found.verdict), "mtu": found.mtu_bytes,
        }  # fmt: skip

    async def _rdma_end(self, rail: str) -> dict[str, Any]:
        """Device and GID index of a rail, or why an RDMA write cannot be tried."""
        device = self._settings.fleet.nodes[self._node].rails[rail].rdma_device
        if device is None:
            return {"skipped": f"rail {rail} of {self._node} has no rdma_device"}
        if busy := self._busy():
            return {"skipped": busy}
        if not rdma.available():
            return {"skipped": f"there is no {rdma.PROGRAM} on {self._node} (package perftest)"}
        return await self._with_gid(rail, device)

    async def _with_gid(self, rail: str, device: str) -> dict[str, Any]:
        here = self._settings.fleet.nodes[self._node].rails[rail]
        devices = await asyncio.to_thread(read_rdma, self._roots, {})
        port = devices[device].port() if device in devices else None
        if port is None:
            return {"problem": f"there is no RDMA device {device}", "verdict": str(rdma.Verdict.FAILED)}
        gid = find_gid(port, here.address.ip, here.interface)
        if gid is None:
            why = f"{device} has no RoCE v2 GID for {here.address.ip}"
            return {"problem": why, "verdict": str(rdma.Verdict.FAILED)}
        return {"device": device, "gid_index": gid.index}

    # -- a program in the engine's environment ---------------------------------------------------------------------

    async def run_program(
        self, test: str, port: int, seconds: float, gone: Callable[[], bool] = lambda: False
    ) -> Ran:
        """This rank's part of the collective, or the burn, as unit dsv41-probe. Nothing of it stays, also not when who
        asked for it is `gone`: a boot may come next, and needs the memory."""
        if test not in ("collective", "clock"):
            raise ValueError(f"there is no program for the test {test!r}")
        seconds = _bounded(seconds)
        if why := self._no_program(test):
            return Ran(test=test, skipped=why)
        if self._program.locked():
            return Ran(test=test, skipped=f"another dsv41 doctor --deep runs on {self._node}")
        async with self._program:
            try:
                return await self._run_unit(test, port, seconds, gone)
            finally:
                await self._units.stop(PROBE_UNIT, 2)
                with contextlib.suppress(OSError):
                    clear(self._settings, self._node)

    async def _run_unit(self, test: str, port: int, seconds: float, gone: Callable[[], bool]) -> Ran:
        settings, fleet = self._settings, self._settings.fleet
        cuda = settings.engine.device is Device.CUDA
        try:
            facts = await self._launch_facts()
            planned = launch_plan(settings, self._node, Boot("doctor", 0, port), facts).environment
        except Dsv41Error as error:
            return Ran(test=test, problem=f"a rank could not be launched: {error.refusals[0].what}"[:300])
        # What the plan sets for the network, on top of what the settings add; nothing that only SGLang reads.
        environment = {n: v for n, v in settings.engine.environment.items() if not n.startswith("SGLANG_")}
        environment |= {n: v for n, v in planned.items() if n.startswith(_PASSED_PREFIXES)}
        log_path = settings.run_dir(self._node) / "probe" / "nccl.log"
        if cuda:
            environment |= {
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH",
                "NCCL_DEBUG_FILE": str(log_path),
            }
        request = {
            "test": test, "seconds": seconds, "rank": fleet.nodes[self._node].rank, "world_size": fleet.world_size,
            "address": str(fleet.nodes[fleet.head].management_address), "port": port,
            "backend": "nccl" if cuda else "gloo", "nccl_log": str(log_path),
        }  # fmt: skip
        wanted = ""
        if test == "collective":
            wanted = "NET/IB" if cuda else environment.get("GLOO_SOCKET_IFNAME", "")
        try:
            result_path = write_request(settings, self._node, environment, request)
            await self._units.start(PROBE_UNIT)
        except (OSError, Dsv41Error) as error:
            return Ran(test=test, skipped=f"the unit {PROBE_UNIT} cannot be started: {error}"[:300])
        until = time.monotonic() + seconds + 10
        while (status := await self._units.status(PROBE_UNIT)).state in (UnitState.ACTIVE, UnitState.STOPPING):
            if time.monotonic() > until:
                return Ran(test=test, wanted_transport=wanted, problem=f"it did not end within {seconds:g} s")
            if gone():
                return Ran(test=test, wanted_transport=wanted, skipped="who asked for it has left")
            await asyncio.sleep(_LOOK_S)
        try:
            raw = json.loads(result_path.read_text())
            return Ran(
                test=test, problem=raw["problem"], transport=tuple(raw.get("transport", ())), wanted_transport=wanted,
                figure=raw.get("figure"), took_s=raw["took_s"],
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError):
            lines = [line for line in await self._units.tail(PROBE_UNIT, 20) if line.strip()]
            said = lines[-1][:200] if lines else "it said nothing"
            log.warning("the %s test ended without a result (exit status %s)", test, status.exit_status)
            why = "it hung and was ended" if status.exit_status == -14 else "it ended without a result"
            return Ran(test=test, wanted_transport=wanted, problem=f"{why}; last line: {said}")

    def _no_program(self, test: str) -> str | None:
        engine = self._settings.engine
        if engine.kind is EngineKind.SCRIPTED:
            return "engine.kind is scripted: its environment holds no torch"
        if engine.container is not None:
            return "the engine is an image, and this test runs in the environment of engine.python"
        if test == "clock" and engine.device is not Device.CUDA:
            return "not applicable, engine.device is cpu"
        return self._busy()

    def _busy(self) -> str | None:
        """Tests that load GPU or rails are not run beside a rank."""
        state = self._rank_state()
        if state in ("absent", "stopped", "failed"):
            return None
        return f"the rank of {self._node} is {state}; run dsv41 down first"

    # -- private -------------------------------------------------------------------------------------------------

    def _address(self, rail: str, node: str | None = None) -> str:
        return str(self._settings.fleet.nodes[node or self._node].rails[rail].address.ip)

    def _free_rendezvous_port(self) -> int:
        """The firewall lets this range in, and a boot takes its ports from the other end."""
        address = str(self._settings.fleet.nodes[self._node].management_address)
        rendezvous = self._settings.engine.rendezvous
        for port in reversed(range(rendezvous.first_port, rendezvous.first_port + rendezvous.n_ports)):
            if _is_free(address, port):
                return port
        raise Dsv41Error(
            f"no port from {rendezvous.first_port} on is free for a rendezvous.", stage=Stage.RANK, node=self._node,
            hint="Stop what holds them, or move engine.rendezvous.first_port.", transient=True,
        )  # fmt: skip

    def _in_background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._servers.add(task)
        task.add_done_callback(self._servers.discard)


async def _ping(source: str, target: str, **how: Any) -> Pinged:
    return await asyncio.to_thread(ping, source, target, **how)


def _pinged(result: Pinged) -> dict[str, Any]:
    # One lost echo while the neighbour is being found is what warming up is for.
    problem = result.problem if result.received == 0 else None
    return {"problem": problem, "figure": result.best_ms, "connected": result.received > 0}


def _bounded(seconds: float) -> float:
    return min(max(float(seconds), 0.1), MAX_SECONDS)


def _free_port(address: str) -> int:
    with socket.socket() as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
        except OSError:
            return False
    return True
