"""Names and addresses of a demo fleet: which cable joins which nodes, which subnet it is. Pure.

The scheme is the one the module writes for a real fleet: one management subnet, one subnet a cable, host number =
node number. Nodes are spark1, spark2, …; a Spark's two ports are enp1s0f0np0 and enp1s0f1np1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network

from ..settings.fleet import Topology

MAX_NODES = 8
RAIL_MTU = 9000
MANAGEMENT_INTERFACE = "enP7s7"
PORTS = ("enp1s0f0np0", "enp1s0f1np1")
_FIRST_CHOICE = 41


@dataclass(frozen=True, slots=True)
class RailEnd:
    """One cable's end on one node; `peer` is None when the cable goes to a switch."""

    interface: str
    address: IPv4Interface
    peer: str | None


@dataclass(frozen=True, slots=True)
class NodeAddresses:
    """What one node of the fleet is called and reached by."""

    name: str
    rank: int
    management: IPv4Interface
    management_interface: str
    rails: dict[str, RailEnd] = field(default_factory=dict)


def topology_of(n_nodes: int) -> Topology:
    """Three nodes are cabled as a triangle; any other number goes through a switch."""
    return Topology.TRIANGLE if n_nodes == 3 else Topology.SWITCHED


def node_names(n_nodes: int) -> list[str]:
    return [f"spark{number}" for number in range(1, n_nodes + 1)]


def plan(n_nodes: int, prefix: IPv4Network) -> list[NodeAddresses]:
    """Addresses of every node within one /16: x.y.0.0/24 is management, x.y.12.0/24 the cable of nodes 1 and 2."""
    base = int(prefix.network_address)
    names = node_names(n_nodes)

    def address(subnet: int, host: int) -> IPv4Interface:
        return IPv4Interface((base + (subnet << 8) + host, 24))

    rails: dict[str, dict[str, RailEnd]] = {name: {} for name in names}
    if n_nodes == 3:
        # A ring of three is every pair: the first port goes to the next node, the second to the one before.
        for rail, (a, b) in zip("abc", ((1, 2), (2, 3), (3, 1)), strict=True):
            subnet = 10 * min(a, b) + max(a, b)
            rails[names[a - 1]][rail] = RailEnd(PORTS[0], address(subnet, a), names[b - 1])
            rails[names[b - 1]][rail] = RailEnd(PORTS[1], address(subnet, b), names[a - 1])
    elif n_nodes > 1:
        for number, name in enumerate(names, start=1):
            rails[name]["a"] = RailEnd(PORTS[0], address(100, number), None)
    return [
        NodeAddresses(name, rank, address(0, rank + 1), MANAGEMENT_INTERFACE, rails[name])
        for rank, name in enumerate(names)
    ]


def way_in(prefix: IPv4Network) -> IPv4Interface:
    """Address of the root namespace's end on the management subnet."""
    return IPv4Interface((int(prefix.network_address) + 254, 24))


def plan_loopback(n_nodes: int) -> list[NodeAddresses]:
    """Without namespaces every node has an address of its own on this machine's loopback, and no cable."""
    return [
        NodeAddresses(name, rank, IPv4Interface(f"127.0.41.{rank + 1}/8"), "lo")
        for rank, name in enumerate(node_names(n_nodes))
    ]


def candidate_prefixes(used: Iterable[IPv4Network]) -> list[IPv4Network]:
    """Every 10.x.0.0/16 that overlaps nothing in `used`, in the order to try: 10.41 first, then upwards."""
    used = [network for network in used if network.prefixlen > 0]
    order = [(_FIRST_CHOICE + step) % 256 for step in range(256)]
    choices = (IPv4Network((10 << 24 | second << 16, 16)) for second in order)
    return [choice for choice in choices if not any(choice.overlaps(network) for network in used)]
