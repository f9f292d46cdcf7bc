"""All facts of this node's fabric, each reader on its own: one that fails or hangs costs only its own facts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address
from typing import Any, TypeVar

from ..settings import Device, Settings, Topology, UnitBackend
from .bounded import BoundedReads
from .facts import Link, Nccl, NodeFacts, RdmaDevice
from .firewall import Packet, read_firewall
from .limits import limits_of_process, limits_of_unit
from .links import read_links, read_neighbours, with_ethtool, with_sysfs
from .lossless import read_ecn, read_pfc
from .nccl_library import mapped_libraries, planned_library, read_library
from .rdma import read_rdma
from .roots import Roots, Unreadable
from .routes import pairs_of, read_routes, read_ways
from .ruleset import Ruleset, nft
from .sysctls import read_sysctls

READER_TIMEOUT_S = 5.0
LIBRARY_TIMEOUT_S = 20.0
"""A libnccl of 200 MB is hashed the first time it is seen."""

LONGEST_S = 3600.0
"""No bound of its own: `_read` has one, and says so."""

T = TypeVar("T")


async def read_facts(
    settings: Settings,
    node: str,
    roots: Roots | None = None,
    rank_pids: Sequence[int] = (),
    bound_s: float | None = None,
    reads: BoundedReads | None = None,
    ruleset: Ruleset = nft,
) -> NodeFacts:
    """Everything about this node's fabric. Never raises: what could not be read is in `unread` with the reason.

    `rank_pids` are the processes of the running rank; without them limits are those its unit would get. `bound_s` is
    the longest time for one reader instead of its own, for libnccl where that is less; some are read after links, so
    that it takes two such times at most. `reads` is kept by who asks again and again: what hangs is then not started a
    second time. `ruleset` asks the packet filter.
    """
    return await _Reading(settings, node, roots or Roots(), rank_pids, bound_s, reads or BoundedReads(), ruleset).all()


class _Reading:
    def __init__(
        self, settings: Settings, node: str, roots: Roots, rank_pids: Sequence[int], bound_s: float | None,
        reads: BoundedReads, ruleset: Ruleset,
    ) -> None:  # fmt: skip
        self._ruleset = ruleset
        self._reads = reads
        self._settings = settings
        self._bound_s = bound_s
        self._node = node
        self._here = settings.fleet.nodes[node]
        self._roots = roots
        self._pids = rank_pids
        self._rails = [rail.interface for rail in self._here.rails.values()]
        self._unread: dict[str, str] = {}

    async def all(self) -> NodeFacts:
        links, routes, ways, neighbours, sysctls, firewall, limits, nccl = await asyncio.gather(
            self._read("links", read_links(), {}),
            self._read("routes", read_routes(), ()),
            self._read("ways", read_ways(pairs_of(self._settings, self._node)), ()),
            self._read("neighbours", read_neighbours(), ()),
            self._read(
                "sysctls", self._threaded("sysctls", lambda: read_sysctls(self._roots, self._interfaces())), None
            ),
            self._read("firewall", self._firewall(), None),
            self._read("limits", self._limits(), None),
            self._read("nccl", self._nccl(), None, min(self._bound_s or LIBRARY_TIMEOUT_S, LIBRARY_TIMEOUT_S)),
        )
        links, rdma = await self._with_links(links)
        found: dict[str, Any] = {
            "links": links, "routes": routes, "ways": ways, "neighbours": neighbours, "rdma": rdma,
            "firewall": firewall, "limits": limits, "unread": dict(list(self._unread.items())[:64]),
        }  # fmt: skip
        if sysctls is not None:
            found["sysctls"] = sysctls
        if nccl is not None:
            found["nccl"] = nccl
        return NodeFacts(node=self._node, at_s=time.time(), **found)

    async def _read(self, what: str, work: Awaitable[T], otherwise: Any, timeout_s: float | None = None) -> T:
        timeout_s = timeout_s or self._bound_s or READER_TIMEOUT_S
        try:
            async with asyncio.timeout(timeout_s):
                return await work
        except Unreadable as error:
            self._unread[what] = str(error)[:300]
        except TimeoutError:
            self._unread[what] = f"no answer within {timeout_s:g} s"
        except Exception as error:
            self._unread[what] = f"{type(error).__name__}: {error}"[:300]
        return otherwise

    def _threaded(self, what: str, work: Callable[[], T]) -> Awaitable[T]:
        """In a daemon thread: a driver that holds a read holds neither the event loop nor the end of the program."""
        return self._reads.read(f"fabric {what}", work, LONGEST_S)

    def _interfaces(self) -> list[str]:
        return [*self._rails, self._here.management_interface]

    async def _with_links(self, links: dict[str, Link]) -> tuple[dict[str, Link], dict[str, RdmaDevice]]:
        """What is known about the links beside netlink, and the RDMA devices; side by side, each with its bound."""
        mtus = {name: link.mtu for name, link in links.items()}
        names = sorted(set(self._rails) & set(links))
        lossless = any(rail.rdma_device for rail in self._here.rails.values())

        def sysfs() -> dict[str, Link]:
            seen = {name: with_sysfs(link, self._roots) for name, link in links.items()}
            for name in names if lossless else ():
                seen[name] = seen[name].model_copy(update={"ecn_priorities": read_ecn(self._roots, name)})
            return seen

        seen, told, rdma, *pfc = await asyncio.gather(
            self._read("sysfs", self._threaded("sysfs", sysfs), links),
            self._read("ethtool", with_ethtool(links, self._rails), links),
            self._read("rdma", self._threaded("rdma", lambda: read_rdma(self._roots, mtus)), {}),
            *(self._read("pfc", read_pfc(name), None) for name in names if lossless),
        )
        for name in names:
            # The driver's own word comes first where both know something.
            more = {k: v for k in ("speed_mbit", "autoneg", "module") if (v := getattr(told[name], k)) is not None}
            seen[name] = seen[name].model_copy(update=more)
        for name, priorities in zip(names, pfc, strict=False):
            seen[name] = seen[name].model_copy(update={"pfc_priorities": priorities})
        return seen, rdma

    async def _firewall(self) -> Any:
        incoming, forwarded = packets(self._settings, self._node)
        return await read_firewall(self._roots, incoming, forwarded, self._ruleset)

    async def _limits(self) -> Any:
        if self._pids:
            return limits_of_process(self._roots, self._pids[0], f"rank process {self._pids[0]}")
        if self._settings.supervisor.units is UnitBackend.SYSTEMD:
            return await limits_of_unit(f"dsv41-rank@{self._here.rank}")
        return limits_of_process(self._roots, "self", "this supervisor, whose limits its ranks inherit")

    async def _nccl(self) -> Nccl:
        engine = self._settings.engine
        if engine.device is not Device.CUDA:
            raise Unreadable("engine.device is cpu: NCCL is not used")
        preload = engine.environment.get("LD_PRELOAD", "")
        if engine.container is not None and engine.nccl.library is None:
            raise Unreadable("it is in the image of engine.container")
        chosen = engine.nccl.library
        named = str(self._settings.path(chosen, self._node)) if chosen is not None else None

        def libraries() -> Nccl:
            planned = read_library(planned_library(engine.python or "", named, preload))
            mapped = tuple(read_library(other) for other in mapped_libraries(self._roots, self._pids))
            return Nccl(planned=planned, mapped=mapped)

        return await self._threaded("libraries", libraries)


def packets(settings: Settings, node: str) -> tuple[list[Packet], list[Packet]]:
    """The connections that peers open to this node, and those that cross it in a ring."""
    fleet, here = settings.fleet, settings.fleet.nodes[node]
    incoming = []
    for name, other in fleet.nodes.items():
        if name == node:
            continue
        for port in (here.supervisor_port, settings.engine.rendezvous.first_port, 0):
            incoming.append(_packet(here.management_interface, other.management_address, port))
        incoming += [
            _packet(here.rails[rail_name].interface, rail.address.ip, 0)
            for rail_name, rail in other.rails.items()
            if rail_name in here.rails and rail.peer in (None, node)
        ]
    forwarded = []
    if fleet.topology is Topology.RING:
        rails = list(here.rails.values())
        forwarded = [
            Packet(one.interface, oif=other.interface) for one in rails for other in rails if one.peer != other.peer
        ]
    return incoming, forwarded


def _packet(interface: str, source: IPv4Address, port: int) -> Packet:
    return Packet(interface, source, port) if port else Packet(interface, source)
