"""Makes the kernel learn every peer's hardware address on every rail, before RoCE needs it.

RoCE does not wait for ARP: the first transfer over a rail that nobody used yet fails. A datagram to the discard port
makes the kernel ask; no privilege is needed, and nobody has to listen.
"""

from __future__ import annotations

import asyncio
import socket
import time
from ipaddress import IPv4Address

from ..settings import Settings
from .facts import Link
from .links import read_links, read_neighbours

DISCARD_PORT = 9
KNOWN = frozenset({"REACHABLE", "STALE", "DELAY", "PROBE", "PERMANENT"})
WARM_TIMEOUT_S = 4.0
"""The kernel itself gives up after three questions, a second apart."""


def peers_on_rails(settings: Settings, node: str, links: dict[str, Link]) -> dict[tuple[str, IPv4Address], IPv4Address]:
    """(interface, peer's address) → own address, for each rail that has carrier and its address."""
    here = settings.fleet.nodes[node]
    pairs = {}
    for name, rail in here.rails.items():
        link = links.get(rail.interface)
        if link is None or not (link.up and link.carrier) or rail.address not in link.addresses:
            continue
        for other_name, other in settings.fleet.nodes.items():
            if other_name != node and name in other.rails and rail.peer in (None, other_name):
                pairs[rail.interface, other.rails[name].address.ip] = rail.address.ip
    return pairs


async def warm_neighbours(
    settings: Settings, node: str, wait_s: float = WARM_TIMEOUT_S
) -> dict[tuple[str, IPv4Address], str]:
    """Ask for every peer on every rail; returns the neighbour state by (interface, address) once none is in doubt.

    Waits for answers at most `wait_s`: who has not answered by then is INCOMPLETE or FAILED in the table, and the
    check `rail-neighbour` says so. An entry that failed long ago is asked for anew.
    """
    pairs = peers_on_rails(settings, node, await read_links())
    states: dict[tuple[str, IPv4Address], str] = {}
    deadline = time.monotonic() + wait_s
    for (_, peer), own in pairs.items():
        _ask(own, peer)
    while pairs:
        rows = {(row.interface, row.address): row.state for row in await read_neighbours()}
        states = {pair: rows.get(pair, "NONE") for pair in pairs}
        if all(state in KNOWN or state == "FAILED" for state in states.values()) or time.monotonic() >= deadline:
            break
        await asyncio.sleep(0.05)
    return states


def _ask(own: IPv4Address, peer: IPv4Address) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.bind((str(own), 0))
            sock.sendto(b"dsv41", (str(peer), DISCARD_PORT))
        except OSError:
            # No route or no address: the checks of routes and addresses name it.
            return
