"""One node's host facts, read side by side, each with a bound: by a supervisor, or by `dsv41 doctor` alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..fabric.bounded import BoundedReads, Unread
from ..fabric.facts import NodeFacts
from ..fabric.warm import WARM_TIMEOUT_S, warm_neighbours
from ..settings import Device, Settings
from . import read_files, read_gateway, read_gpu, read_proc
from .facts import MAX_ROWS, ContainerFacts, HostFacts, Port

if TYPE_CHECKING:
    from ..rank.container_look import Look

READ_S = 1.0
"""For one reader. A fleet's doctor answers within two seconds, also when a mount is dead."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a supervisor knows about its node and a lone `dsv41 doctor` does not."""

    supervised: bool = False
    rank_state: str = "unknown"
    pids: Collection[int] = ()
    """The supervisor and the main processes of its units: what they and their children hold is the fleet's own."""
    same: Mapping[str, Any] = field(default_factory=dict)
    fabric_changes: tuple[str, ...] = ()


async def read_host(
    settings: Settings, node: str, standing: Standing, reads: BoundedReads, bound_s: float = READ_S
) -> HostFacts:
    """Everything about this node's host within about `bound_s`; what was not read is named in `unread`."""
    values: dict[str, Any] = {}
    unread: dict[str, str] = {}
    took_s: dict[str, float] = {}

    async def read(name: str, what: str, work: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            values[name] = await reads.read(what, work, bound_s)
        except Unread as error:
            unread[name] = str(error)[:300]
        took_s[name] = round(time.monotonic() - began, 4)

    def processes() -> dict[str, Any]:
        return _processes(settings, node, standing)

    async with asyncio.TaskGroup() as group:
        for name, what, work in (
            ("memory", "the memory figures (/proc/meminfo)", read_proc.read_memory),
            ("kernel", "the kernel's settings (/proc/sys)", read_proc.read_kernel),
            ("gpu_driver", "the GPU driver (/proc/driver/nvidia)", read_proc.read_gpu_driver),
            ("processes", "the table of processes (/proc)", processes),
            ("disks", "the disks (statvfs)", lambda: read_files.read_disks(settings, node)),
            ("checkpoint", "the checkpoint's headers", lambda: read_files.read_checkpoint(settings, node)),
            ("rows", "the headers of the packed rows", lambda: read_files.read_rows(settings, node)),
        ):
            group.create_task(read(name, what, work))
        if node == settings.fleet.head:
            # It gives up a moment before it is given up, and says why.
            ask = 0.9 * bound_s
            group.create_task(read("gateway", "the gateway", lambda: read_gateway.read_gateway(settings, ask)))
        if has_gpu():
            group.create_task(read("gpus", "nvidia-smi", lambda: read_gpu.read_gpus(bound_s)))
    values |= values.pop("processes", {})
    if n_unseen := values.pop("gpu_users_unseen", 0):
        unread["gpu_users"] = f"the open files of {n_unseen} processes cannot be read, so a GPU user may be missed"
    return HostFacts(
        node=node, supervised=standing.supervised, rank_state=standing.rank_state, at_s=time.time(),
        same=same_bits(settings, standing), fabric_changes=tuple(c[:300] for c in standing.fabric_changes[:MAX_ROWS]),
        unread=unread, took_s=took_s, **values,
    )  # fmt: skip


def has_gpu() -> bool:
    return (read_proc.PROC / "driver/nvidia/version").exists()


def same_bits(settings: Settings, standing: Standing) -> dict[str, str]:
    """What must be equal on every node: what the supervisor compares at a boot, and the engine's own environment."""
    same = {
        "supervisor version": __version__,
        "settings hash": settings.hash,
        "kernel": os.uname().release,
        "engine environment": _engine(settings),
    }
    if system := _real("/run/current-system", must_exist=True):
        same["system closure"] = system
    return {str(name)[:64]: str(value)[:300] for name, value in {**same, **standing.same}.items()}


def _engine(settings: Settings) -> str:
    container = settings.engine.container
    return container.image if container is not None else _real(settings.engine.python or "")


def _real(path: str, *, must_exist: bool = False) -> str:
    """Where a path leads: in a Nix store the name of the closure, with its hash."""
    if must_exist and not os.path.exists(path):
        return ""
    return os.path.realpath(path)


def _processes(settings: Settings, node: str, standing: Standing) -> dict[str, Any]:
    """Everything that needs the table of processes: who kills, who holds the GPU, who listens where."""
    table = read_proc.read_processes()
    roots = standing.pids if standing.supervised else read_proc.supervisors(table)
    ours = read_proc.descendants(table, [pid for pid in roots if pid in table])
    values: dict[str, Any] = {
        "killers": read_proc.read_killers(),
        "ports": _unseen_supervisor(read_proc.read_ports(needed_ports(settings, node), table, ours), ours)
        + taken(read_proc.read_ports(rendezvous_ports(settings, node), table, ours)),
    }
    if settings.engine.device is Device.CUDA or has_gpu():
        values["gpu_users"] = read_proc.gpu_users(table, ours)
        if n_unseen := read_proc.n_unseen(table):
            values["gpu_users_unseen"] = n_unseen
    return values


def _unseen_supervisor(ports: tuple[Port, ...], ours: Collection[int]) -> tuple[Port, ...]:
    """Who may not look into others' processes does not see whose the supervisor's port is: the supervisor's, if one
    runs."""
    return tuple(
        port.model_copy(update={"ours": True})
        if port.purpose == "supervisor" and port.holder is not None and port.holder.pid == 0 and ours else port
        for port in ports
    )  # fmt: skip


def needed_ports(settings: Settings, node: str) -> list[tuple[str, int]]:
    """Ports that this node's processes listen on, with what for."""
    here = settings.fleet.nodes[node]
    ports = [("engine", here.engine_port), ("supervisor", here.supervisor_port)]
    return ports + ([("gateway", settings.gateway.port)] if node == settings.fleet.head else [])


def rendezvous_ports(settings: Settings, node: str) -> list[tuple[str, int]]:
    """Where the ranks of one boot meet: on the head, one port of this range for every boot."""
    if node != settings.fleet.head:
        return []
    rendezvous = settings.engine.rendezvous
    return [("rendezvous", rendezvous.first_port + i) for i in range(rendezvous.n_ports)]


def taken(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    """Only those that somebody holds, and no more of them than facts may carry."""
    return tuple(port for port in ports if port.holder is not None)[: MAX_ROWS - 8]


async def asked_and_read(
    settings: Settings, node: str, bound_s: float, read: Callable[[float], Awaitable[NodeFacts]]
) -> NodeFacts:
    """The fabric's facts after every peer was asked for on every rail, as before a boot: else a neighbour that nobody
    used is not seen to be missing, and one that was missing an hour ago still looks it. `read` gets its readers' bound.
    """
    began = time.monotonic()
    wait_s = min(WARM_TIMEOUT_S, bound_s / 4)
    # Links that cannot be read are said by the readers.
    with contextlib.suppress(Exception):
        async with asyncio.timeout(wait_s + 0.05):
            await warm_neighbours(settings, node, wait_s)
    left_s = bound_s - (time.monotonic() - began)
    return await read(max(0.05, round(left_s / 2, 2)))


async def fabric_within(bound_s: float, reading: Any) -> dict[str, Any] | None:
    """The fabric's facts as JSON; None when even their bounded readers together took longer than `bound_s`."""
    try:
        async with asyncio.timeout(bound_s + 0.2):
            return (await reading).model_dump(mode="json")  # type: ignore[no-any-return]
    except TimeoutError:
        return None


async def with_container(bound_s: float, look: Look | None, host: Awaitable[HostFacts]) -> HostFacts:
    """Host facts, with what a rank in a container needs where `look` can ask. A slow podman is no missing one."""

    async def containers() -> ContainerFacts | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(bound_s + 0.2):
                return await look() if look is not None else None
        return None

    facts, found = await asyncio.gather(host, containers())
    if look is not None and found is None:
        why = f"podman did not answer within {bound_s:g} s"
        facts = facts.model_copy(update={"unread": facts.unread | {"container": why}})
    return facts.model_copy(update={"container": found})
