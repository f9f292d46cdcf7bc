"""Routes over rtnetlink, and which way the kernel would really send to every peer of a rail, as `ip route get` does.

A table alone does not tell: policy rules choose it by source, and a route that swallows packets (`blackhole`) has no
interface. So the kernel is asked for each peer, from the rail's own address; the tables then say what to remove.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from ..settings import Settings
from .facts import MAIN_TABLE, MAX_ROWS, SWALLOWING, UNICAST, Route, Way

_KINDS = {1: UNICAST, 6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw"}
"""RTN_* of linux/rtnetlink.h. Local and broadcast routes are the kernel's own."""
_REFUSED = {
    errno.EINVAL: "are thrown away without a word", errno.EHOSTUNREACH: "are refused as unreachable",
    errno.EACCES: "are refused as prohibited", errno.ENETUNREACH: "leave nowhere, there is no route",
    errno.EAGAIN: "leave nowhere, there is no route",
}  # fmt: skip


async def read_routes() -> tuple[Route, ...]:
    """IPv4 routes that lead somewhere or swallow packets, of all tables; those of the main table first."""
    from pyroute2 import AsyncIPRoute

    async with AsyncIPRoute() as ipr:
        names = {m["index"]: m.get("IFLA_IFNAME") async for m in await ipr.get_links()}
        routes = [
            Route(
                destination=IPv4Network(f"{message.get('RTA_DST') or '0.0.0.0'}/{message['dst_len']}"),
                kind=_KINDS[message["type"]],
                table=message.get("RTA_TABLE") or message["table"],
                interface=names.get(message.get("RTA_OIF")),
                gateway=_ip(message.get("RTA_GATEWAY")),
                source=_ip(message.get("RTA_PREFSRC")),
            )
            async for message in await ipr.get_routes(family=2)
            if message["type"] in _KINDS
        ]
    return tuple(sorted(routes, key=lambda route: route.table != MAIN_TABLE)[:MAX_ROWS])


def pairs_of(settings: Settings, node: str) -> list[tuple[IPv4Address, IPv4Address]]:
    """Own address and peer's address of every rail and every peer on it."""
    fleet = settings.fleet
    return [
        (rail.address.ip, other.rails[name].address.ip)
        for name, rail in fleet.nodes[node].rails.items()
        for other_name, other in fleet.nodes.items()
        if other_name != node and name in other.rails and rail.peer in (None, other_name)
    ]


async def read_ways(pairs: Iterable[tuple[IPv4Address, IPv4Address]]) -> tuple[Way, ...]:
    """The kernel's answer for each pair. An address that this node does not hold cannot be asked from: then without."""
    from pyroute2 import AsyncIPRoute

    async with AsyncIPRoute() as ipr:
        names = {m["index"]: m.get("IFLA_IFNAME") async for m in await ipr.get_links()}
        held = {m.get("IFA_LOCAL") async for m in await ipr.get_addr(family=2)}
        ways = []
        for own, peer in pairs:
            source = {"src": str(own)} if str(own) in held else {}
            ways.append(await _way(ipr, names, own if source else None, peer, source))
    return tuple(ways[:MAX_ROWS])


async def _way(
    ipr: Any, names: dict[int, str], own: IPv4Address | None, peer: IPv4Address, source: dict[str, str]
) -> Way:
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        answers = await ipr.route("get", dst=str(peer), **source)
    except NetlinkError as error:
        why = _REFUSED.get(error.code, f"are refused ({errno.errorcode.get(error.code, error.code)})")
        return Way(destination=peer, source=own, problem=why)
    for message in answers:
        if message["type"] != 1:
            # A peer's address that this node holds itself: its packets never leave.
            return Way(destination=peer, source=own, problem="stay on this node, which holds that address itself")
        return Way(
            destination=peer, source=own, interface=names.get(message.get("RTA_OIF")),
            gateway=_ip(message.get("RTA_GATEWAY")),
        )  # fmt: skip
    return Way(destination=peer, source=own, problem="get no answer from the kernel")


def culprit(routes: Iterable[Route], peer: IPv4Address, rail: str, network: IPv4Network) -> Route | None:
    """The route that takes packets for a peer away from its rail, whose own route is that of `network`: what swallows
    before what leads elsewhere, the most exact first. One that is less exact only shows that the rail's is missing."""

    def takes_away(route: Route) -> bool:
        swallows = route.kind in SWALLOWING
        exact = route.destination.prefixlen >= network.prefixlen or (swallows and route.table != MAIN_TABLE)
        return exact and (swallows or route.interface != rail or route.gateway is not None)

    fitting = [route for route in routes if peer in route.destination and takes_away(route)]
    return max(fitting, key=lambda r: (r.kind in SWALLOWING, r.destination.prefixlen), default=None)


def _ip(value: Any) -> IPv4Address | None:
    return IPv4Address(value) if value else None
