"""What the fabric's checks share: walking over rails, physical ports, and saying that a check does not apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from ...checks import Found, Severity
from ...settings import Rail, Settings
from ..facts import Link, NodeFacts, RdmaDevice, RdmaPort

Fleet = Mapping[str, NodeFacts]
"""Facts by node; nodes that could not be asked are not in it."""


@dataclass(frozen=True, slots=True)
class Here:
    """One rail of one node with what was seen of it."""

    node: str
    name: str
    rail: Rail
    facts: NodeFacts
    link: Link | None

    @property
    def title(self) -> str:
        return f"rail {self.name} ({self.rail.interface})"

    @property
    def setting(self) -> str:
        return f"fleet.nodes.{self.node}.rails.{self.name}"

    @property
    def device(self) -> RdmaDevice | None:
        return self.facts.rdma.get(self.rail.rdma_device or "")

    @property
    def port(self) -> RdmaPort | None:
        return self.device.port() if self.device is not None else None

    def found(self, what: str, do_next: str, *, severity: Severity | None = None, transient: bool = False) -> Found:
        """A finding about this rail."""
        return Found(
            self.node, f"{self.title} {what}", do_next, rail=self.name, where=self.setting, severity=severity,
            transient=transient,
        )  # fmt: skip


def rails(fleet: Fleet, settings: Settings) -> Iterator[Here]:
    """Every rail of every node whose facts are there, in rank order."""
    for node in settings.fleet.in_rank_order:
        if node in fleet:
            facts = fleet[node]
            for name, rail in settings.fleet.nodes[node].rails.items():
                yield Here(node, name, rail, facts, facts.links.get(rail.interface))


def seen_rails(fleet: Fleet, settings: Settings) -> Iterator[Here]:
    """Rails whose interface is there; `rail-interface` names the others."""
    return (here for here in rails(fleet, settings) if here.link is not None)


def rdma_rails(fleet: Fleet, settings: Settings) -> Iterator[Here]:
    """Rails that are to carry RDMA."""
    return (here for here in rails(fleet, settings) if here.rail.rdma_device is not None)


def has_rdma(settings: Settings) -> bool:
    return any(rail.rdma_device is not None for node in settings.fleet.nodes.values() for rail in node.rails.values())


def skipped(why: str, node: str | None = None) -> Found:
    """The check could not look, or does not apply: `why` says which."""
    return Found(node, f"{why}.", "Nothing to do.", severity=Severity.SKIPPED)


def not_read(fleet: Fleet, section: str, what: str) -> Iterator[Found]:
    """For each node whose `section` nobody could read, that and why, as grave as the check is: what was not looked at
    is neither known to be there nor known to be missing."""
    for node, facts in fleet.items():
        if section in facts.unread:
            yield Found(
                node, f"{what} could not be read: {facts.unread[section]}.",
                f"See dmesg on {node}: a driver that hangs holds such a read. dsv41 doctor --timeout 20 waits longer.",
                transient=True,
            )  # fmt: skip


def because(facts: NodeFacts, section: str) -> str:
    """Why a part of `section` is not there, as the end of a sentence; nothing where the section was read."""
    return f": {facts.unread[section]}" if section in facts.unread else ""


NO_RDMA = "not applicable: no RDMA devices configured"


def peer_addresses(here: Here, settings: Settings) -> list[tuple[str, IPv4Address]]:
    """Who is at the other end of a rail: its peer, or behind a switch everybody with a rail of this name."""
    return [
        (name, node.rails[here.name].address.ip)
        for name, node in settings.fleet.nodes.items()
        if name != here.node and here.name in node.rails and here.rail.peer in (None, name)
    ]


def physical_port(link: Link) -> tuple[str, str] | None:
    """Which QSFP port an interface belongs to. Never by PCI address: the two functions of one port are in different
    PCI domains (NVIDIA/NemoClaw#8520)."""
    if link.phys_switch_id is None or link.phys_port_name is None:
        return None
    return link.phys_switch_id, link.phys_port_name


def ends(fleet: Fleet, settings: Settings) -> Iterator[tuple[Here, Here]]:
    """Both ends of every cable between two nodes, once; behind a switch, every node against the first of the rail."""
    by_place = {(here.node, here.name): here for here in seen_rails(fleet, settings)}
    first: dict[str, Here] = {}
    for (node, name), here in by_place.items():
        if here.rail.peer is None:
            if name in first:
                yield first[name], here
            first.setdefault(name, here)
        elif (other := by_place.get((here.rail.peer, name))) is not None and node < here.rail.peer:
            yield here, other
