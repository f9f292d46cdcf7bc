"""Pulling at the network between the nodes of a fleet that runs in namespaces: links, neighbours, routes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dsv41_supervisor.demo.addresses import MANAGEMENT_INTERFACE
from dsv41_supervisor.demo.network import Network

if TYPE_CHECKING:
    from pyroute2 import IPRoute

NOWHERE = "02:00:00:00:de:ad"
"""Nobody's address: what is sent there is dropped by the bridge, and nobody answers or closes anything."""


@contextlib.contextmanager
def link_down(network: Network, node: str, interface: str) -> Iterator[None]:
    """A pulled cable: both its ends lose their carrier. Addresses and routes come back with it."""
    _set_link(network, node, interface, "down")
    try:
        yield
    finally:
        _set_link(network, node, interface, "up")


def hub_port(network: Network, node: str) -> str:
    """The switch's end of a node's management cable: pulled there, the node keeps its address."""
    rank = next(n.rank for n in network.nodes if n.name == node)
    return f"mgmt-{rank}"


@contextlib.contextmanager
def hub_link_down(network: Network, node: str) -> Iterator[None]:
    """The management cable of a node, pulled at the switch."""
    with link_down(network, "", hub_port(network, node)):
        yield


@contextlib.contextmanager
def silent_drop(network: Network, sender: str, receiver: str) -> Iterator[None]:
    """From now on nothing that `sender` sends to `receiver` on the management network arrives; links stay up."""
    address = str(next(n for n in network.nodes if n.name == receiver).management.ip)

    def poison(ipr: IPRoute) -> None:
        from pyroute2.netlink.rtnl.ndmsg import NUD_PERMANENT

        (index,) = ipr.link_lookup(ifname=MANAGEMENT_INTERFACE)
        ipr.neigh("replace", dst=address, lladdr=NOWHERE, ifindex=index, state=NUD_PERMANENT)

    def heal(ipr: IPRoute) -> None:
        (index,) = ipr.link_lookup(ifname=MANAGEMENT_INTERFACE)
        ipr.neigh("delete", dst=address, lladdr=NOWHERE, ifindex=index)

    in_namespace(network, sender, poison)
    try:
        yield
    finally:
        in_namespace(network, sender, heal)


def divert(network: Network, node: str, address: str, port: int) -> socket.socket:
    """A listening socket in `node`'s namespace that gets what `node` connects to `address`:`port` of another node.

    Only that port is diverted; everything else, the engine's own connections too, goes where it went.
    """

    own = str(next(n for n in network.nodes if n.name == node).management.ip)

    def build(ipr: IPRoute) -> socket.socket:
        loopback = ipr.link_lookup(ifname="lo")[0]
        table = 100
        # The source must be an address of this node: by itself the kernel would take the other one's.
        ipr.route("replace", dst=f"{address}/32", table=table, type="local", oif=loopback, scope="host", prefsrc=own)
        ipr.rule("add", table=table, dst=address, dst_len=32, ip_proto=socket.IPPROTO_TCP, priority=100,
                 dport_range=f"{port}:{port}")  # fmt: skip
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        ip_transparent = 19
        listening.setsockopt(socket.IPPROTO_IP, ip_transparent, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(128)
        return listening

    made = in_namespace(network, node, build)
    assert isinstance(made, socket.socket)
    return made


def in_namespace(network: Network, node: str, work: Any) -> Any:
    """Run `work(ipr)` with a netlink socket in a node's namespace ("" is the switch)."""
    from pyroute2 import IPRoute

    def inside() -> Any:
        with IPRoute() as ipr:
            return work(ipr)

    return network._in_namespace(node, inside)


def _set_link(network: Network, node: str, interface: str, state: str) -> None:
    def work(ipr: IPRoute) -> None:
        (index,) = ipr.link_lookup(ifname=interface)
        ipr.link("set", index=index, state=state)

    in_namespace(network, node, work)
