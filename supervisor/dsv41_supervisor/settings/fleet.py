"""Settings of stage 2: the nodes that serve one model together, and the cables between them."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Interface
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from .base import AbsolutePath, Model, Name, Port


class Topology(StrEnum):
    """How the nodes are cabled: every pair by its own cable, through a switch, or in a ring without one."""

    TRIANGLE = "triangle"
    SWITCHED = "switched"
    RING = "ring"


class Rail(Model):
    """One cable's end on one node."""

    interface: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,15}$")] = Field(
        description="Network interface of this end, at most 15 characters as the kernel has it."
    )
    rdma_device: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,63}$")] | None = Field(
        default=None,
        description="RDMA device (HCA) of this end, such as rocep1s0f0. null where there is none (the demo); "
        "a fleet whose engine runs on CUDA must name one.",
    )
    address: IPv4Interface = Field(
        description="Address with prefix length, such as 10.0.12.1/24. Twins of one port need separate subnets."
    )
    peer: Name | None = Field(
        default=None, description="Node at the other end of the cable; null when the cable goes to a switch."
    )
    mac: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")] | None = Field(
        default=None,
        description="Hardware address of this end, lower case. Named, it is compared, and its peers must hold it as a "
        "permanent neighbour entry, because RoCE does not wait for ARP. null: peers ask for it before every launch.",
    )


class Node(Model):
    """One machine."""

    rank: Annotated[int, Field(ge=0, le=63)] = Field(
        description="Global rank that this node runs; rank 0 is the head. Ranks have no gaps."
    )
    management_address: IPv4Address = Field(
        description="Address on the management network: the supervisors talk there, and Gloo bootstraps there."
    )
    management_interface: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,15}$")] = Field(
        description="Interface that holds the management address; Gloo and NCCL bootstrap use it by name."
    )
    supervisor_port: Port = Field(default=7141, description="Port of this node's supervisor.")
    engine_port: Port = Field(
        default=30000,
        description="Port of this node's engine. On the head it listens on loopback only; the gateway is in front.",
    )
    rails: dict[Name, Rail] = Field(default_factory=dict, description="Cables by name; both ends share a name.")


class Fleet(Model):
    """The nodes that serve one model together."""

    name: Name = Field(description="Name of the fleet; every request between supervisors carries it.")
    topology: Topology = Field(description="How the nodes are cabled.")
    mtu: Annotated[int, Field(ge=1280, le=9216)] = Field(
        default=9000, description="MTU of every rail, in bytes. Both ends must agree or large transfers fail."
    )
    key_file: AbsolutePath = Field(
        description="File with the key that the supervisors share (32 bytes or more); readable by them only."
    )
    nodes: dict[Name, Node] = Field(min_length=1, description="The nodes, by name.")

    @model_validator(mode="after")
    def _consistent(self) -> Fleet:
        problems: list[str] = []
        ranks = sorted(node.rank for node in self.nodes.values())
        if ranks != list(range(len(ranks))):
            problems.append(
                f"fleet.nodes.*.rank are {ranks}, expected {list(range(len(ranks)))} (one each, no gaps, from 0)"
            )
        for what, values in (
            (
                "management_address with supervisor_port",
                [(str(n.management_address), n.supervisor_port) for n in self.nodes.values()],
            ),
            (
                "management_address with engine_port",
                [(str(n.management_address), n.engine_port) for n in self.nodes.values()],
            ),
        ):
            for value, n in Counter(values).items():
                if n > 1:
                    problems.append(f"fleet.nodes.*.{what}: {value[0]}:{value[1]} is used by {n} nodes")
        problems += self._rail_problems()
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _rail_problems(self) -> list[str]:
        problems: list[str] = []
        addresses: Counter[str] = Counter()
        for name, node in self.nodes.items():
            subnets: dict[str, str] = {}
            for rail_name, rail in node.rails.items():
                where = f"fleet.nodes.{name}.rails.{rail_name}"
                addresses[str(rail.address.ip)] += 1
                subnet = str(rail.address.network)
                if subnet in subnets:
                    problems.append(f"{where}.address and {subnets[subnet]}.address share the subnet {subnet}")
                subnets[subnet] = where
                if rail.peer is None:
                    if self.topology is not Topology.SWITCHED:
                        problems.append(f"{where}.peer is null, but a {self.topology} has a node at each cable's end")
                    continue
                if rail.peer == name or rail.peer not in self.nodes:
                    problems.append(f"{where}.peer is {rail.peer!r}, which is not another node of this fleet")
                    continue
                other = self.nodes[rail.peer].rails.get(rail_name)
                if other is None or other.peer != name:
                    problems.append(
                        f"{where}.peer is {rail.peer}, but {rail.peer} has no rail {rail_name!r} back to {name}"
                    )
                elif other.address.network != rail.address.network:
                    problems.append(
                        f"{where}.address {rail.address} and its peer's {other.address} are in different subnets"
                    )
        problems += [f"rail address {a} is used {n} times" for a, n in addresses.items() if n > 1]
        if self.topology is Topology.TRIANGLE:
            problems += self._triangle_problems()
        if self.topology is Topology.RING:
            problems += self._ring_problems()
        return problems

    def _triangle_problems(self) -> list[str]:
        if len(self.nodes) != 3:
            return [f"fleet.topology is triangle, which has 3 nodes; fleet.nodes has {len(self.nodes)}"]
        return [
            f"fleet.topology is triangle, but {name} has no rail to {other}"
            for name, node in self.nodes.items()
            for other in self.nodes
            if other != name and node.rails and other not in {rail.peer for rail in node.rails.values()}
        ]

    def _ring_problems(self) -> list[str]:
        """A ring is one circle of four or more: every node has two peers, and going on leads through all of them."""
        if len(self.nodes) < 4:
            return [f"fleet.topology is ring, which has 4 nodes or more; fleet.nodes has {len(self.nodes)}"]
        peers = {
            name: {r.peer for r in node.rails.values() if r.peer in self.nodes} for name, node in self.nodes.items()
        }
        if not any(peers.values()):
            return []
        problems = [
            f"fleet.topology is ring, but {name} has rails to {', '.join(sorted(found)) or 'nobody'}, not to two nodes"
            for name, found in peers.items()
            if len(found) != 2
        ]
        if problems:
            return problems
        walked = [next(iter(self.nodes))]
        while (ahead := peers[walked[-1]] - set(walked[-2:])) and walked[0] not in ahead:
            walked.append(min(ahead))
        apart = sorted(set(self.nodes) - set(walked))
        return [f"fleet.topology is ring, but {', '.join(apart)} are in another circle than {walked[0]}"] * bool(apart)

    @property
    def head(self) -> str:
        """Name of the node with rank 0."""
        return self.by_rank(0)

    def by_rank(self, rank: int) -> str:
        return next(name for name, node in self.nodes.items() if node.rank == rank)

    @property
    def world_size(self) -> int:
        return len(self.nodes)

    @property
    def in_rank_order(self) -> list[str]:
        return sorted(self.nodes, key=lambda name: self.nodes[name].rank)
