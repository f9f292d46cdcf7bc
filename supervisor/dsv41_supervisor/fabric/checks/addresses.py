"""Addresses of the rails, and whether the packets for every peer take them: routes, ARP, neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address

from ...checks import FABRIC, Found, Severity, check
from ...settings import Settings
from ..facts import Way
from ..routes import culprit
from .common import NO_RDMA, Fleet, Here, because, has_rdma, not_read, peer_addresses, rdma_rails, seen_rails, skipped

_NETPLAN = "/run/systemd/network/10-netplan-"
"""What netplan writes anew at every boot, from /etc/netplan: DGX OS sets its interfaces up that way."""


@check(
    "rail-address", kind=FABRIC, severity=Severity.REFUSAL, source="users F7, F13",
    what="Every rail holds its address with its prefix length.",
)  # fmt: skip
def _rail_address(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for here in seen_rails(fleet, settings):
        if here.link and here.rail.address not in here.link.addresses:
            has = ", ".join(map(str, here.link.addresses)) or "none"
            wrong = "".join(f"ip addr del {address} dev {here.link.name}; " for address in here.link.addresses)
            yield here.found(
                f"has the addresses {has}, expected {here.rail.address}.",
                f"Run {wrong}ip addr add {here.rail.address} dev {here.rail.interface} on {here.node}, or correct the "
                "fleet file.",
            )


@check(
    "address-foreign", kind=FABRIC, severity=Severity.REFUSAL, source="users F8, S17, tsw2k node.sh",
    what="No node holds an address that the fleet file gives to another node: the two would answer for each other.",
)  # fmt: skip
def _address_foreign(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        foreign = foreign_addresses(settings, node)
        names = {rail.interface: name for name, rail in settings.fleet.nodes[node].rails.items()}
        for link in facts.links.values():
            for address in link.addresses:
                if address.ip in foreign:
                    yield Found(
                        node, f"{link.name} holds {address}, which is the address of {foreign[address.ip]}.",
                        f"Run ip addr del {address} dev {link.name} on {node}, and take it out of what sets it; if the "
                        "machines were swapped, correct the fleet file.", rail=names.get(link.name), where=link.name,
                    )  # fmt: skip


def foreign_addresses(settings: Settings, node: str) -> dict[IPv4Address, str]:
    """Addresses of the other nodes, with whose and what for. Fleets on one machine may share a management address."""
    ours = {rail.address.ip for rail in settings.fleet.nodes[node].rails.values()}
    ours.add(settings.fleet.nodes[node].management_address)
    found: dict[IPv4Address, str] = {}
    for name, other in settings.fleet.nodes.items():
        if name != node:
            found[other.management_address] = f"{name} (management)"
            found |= {rail.address.ip: f"{name} (rail {rail_name})" for rail_name, rail in other.rails.items()}
    return {a: whose for a, whose in found.items() if a not in ours and not a.is_loopback}


@check(
    "rail-persistent", kind=FABRIC, severity=Severity.WARNING, source="users F13, tonyd2wild V4 vision recipe #38",
    what="Rails are set up by a systemd-networkd file that survives a reboot, not by hand.",
)  # fmt: skip
def _rail_persistent(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if not has_rdma(settings):
        yield skipped(NO_RDMA)
        return
    for here in seen_rails(fleet, settings):
        file = here.link.network_file if here.link else None
        if file is None and (why := because(here.facts, "sysfs")):
            yield skipped(f"who set up {here.title} cannot be read{why}", here.node)
        elif file is None:
            yield skipped(f"systemd-networkd does not run, so nobody knows who set up {here.title}", here.node)
        elif file == "" or (file.startswith("/run/") and not file.startswith(_NETPLAN)):
            by = f"a file that is gone after a reboot ({file})" if file else "hand, or by another network manager"
            yield here.found(
                f"was set up by {by}.",
                "Import the NixOS module, or write /etc/systemd/network/20-dsv41.network: the address vanishes at "
                "reboot, and the GID index moves.",
            )


@check(
    "rail-subnet", kind=FABRIC, severity=Severity.REFUSAL, source="users F8, dgx-spark-playbooks connect-three",
    what="No other interface holds an address in a rail's subnet, unless arp_ignore and arp_announce keep them apart.",
)  # fmt: skip
def _rail_subnet(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for here in seen_rails(fleet, settings):
        foreign = foreign_addresses(settings, here.node)
        for other in here.facts.links.values():
            # Another node's address is the finding of address-foreign: it has to go, whatever its subnet is.
            shared = [a for a in other.addresses if a.ip in here.rail.address.network and a.ip not in foreign]
            if other.name == here.rail.interface or not shared or _answers_for_itself(here, other.name):
                continue
            if why := because(here.facts, "sysctls"):
                yield here.found(
                    f"shares its subnet {here.rail.address.network} with {other.name} ({shared[0]}), and whether ARP "
                    f"keeps them apart could not be read{why}.",
                    f"Give {other.name} a subnet of its own, or look at net.ipv4.conf.*.arp_ignore and arp_announce.",
                    transient=True,
                )
                continue
            yield here.found(
                f"shares its subnet {here.rail.address.network} with {other.name} ({shared[0]}): either may answer "
                "for the other.",
                f"Give {other.name} a subnet of its own, or set net.ipv4.conf.*.arp_ignore=1 and arp_announce=2 for "
                "both.",
            )


def _answers_for_itself(here: Here, other: str) -> bool:
    sysctls = here.facts.sysctls
    return all(
        sysctls.arp_ignore.get(name, 0) >= 1 and sysctls.arp_announce.get(name, 0) == 2
        for name in (here.rail.interface, other)
    )


@check(
    "rail-arp", kind=FABRIC, severity=Severity.WARNING, source="users F8, graham33/nixos-dgx-spark helpers.sh",
    what="Twins answer ARP for their own address only (arp_ignore 1, arp_announce 2).",
)  # fmt: skip
def _rail_arp(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if not has_rdma(settings):
        yield skipped(NO_RDMA)
        return
    for here in rdma_rails(fleet, settings):
        sysctls, name = here.facts.sysctls, here.rail.interface
        if len(settings.fleet.nodes[here.node].rails) < 2 or name not in sysctls.arp_ignore:
            continue
        if not _answers_for_itself(here, name):
            yield here.found(
                f"has arp_ignore {sysctls.arp_ignore[name]} and arp_announce {sysctls.arp_announce.get(name, 0)}, "
                "expected 1 and 2.",
                f"Set net.ipv4.conf.{name}.arp_ignore=1 and .arp_announce=2: its twin answers for it otherwise.",
            )


@check(
    "rail-route", kind=FABRIC, severity=Severity.REFUSAL, source="users F8",
    what="The kernel sends to every peer's rail address through that rail, and no route or rule swallows it.",
)  # fmt: skip
def _rail_route(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for here in seen_rails(fleet, settings):
        if here.link is None or not (here.link.up and here.link.carrier):
            continue
        ways = {way.destination: way for way in here.facts.ways}
        held = {address.ip for link in here.facts.links.values() for address in link.addresses}
        for peer, address in peer_addresses(here, settings):
            if address in held:
                continue  # address-foreign names it.
            if address not in ways:
                yield skipped(f"the way to {address} cannot be asked for: {here.facts.why_unread('ways')}", here.node)
                continue
            wrong = _astray(here, ways[address])
            if wrong is None:
                continue
            route = culprit(here.facts.routes, address, here.rail.interface, here.rail.address.network)
            yield here.found(
                f"is not the way to {address} on {peer}: packets {wrong}"
                + (f" (route {route})." if route is not None else "."),
                f"Run ip route del {route} on {here.node}, and take it out of what sets it." if route is not None
                else f"Look at ip route get {address} and ip rule on {here.node}; the rail's address with its prefix "
                "length makes the right route.",
            )  # fmt: skip


def _astray(here: Here, way: Way) -> str | None:
    """How packets miss the rail, as the end of a sentence; None when they do not."""
    if way.problem is not None:
        return way.problem
    if way.interface != here.rail.interface:
        return f"leave through {way.interface}"
    return f"leave through a gateway, {way.gateway}" if way.gateway not in (None, way.destination) else None


@check(
    "rail-mac", kind=FABRIC, severity=Severity.WARNING, source="users F9, nixspark nccl-net-setup",
    what="Where the fleet file names hardware addresses: they are the interfaces' own, and every peer holds them as "
    "permanent neighbour entries.",
)  # fmt: skip
def _rail_mac(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if any(rail.mac is not None for node in settings.fleet.nodes.values() for rail in node.rails.values()):
        yield from not_read(fleet, "neighbours", "the neighbour table")
    for here in seen_rails(fleet, settings):
        if here.link is None:
            continue
        if here.rail.mac is not None and here.link.mac not in (None, here.rail.mac):
            yield here.found(
                f"has the hardware address {here.link.mac}, expected {here.rail.mac}: the entries of its peers lead "
                "nowhere.",
                f"Set {here.setting}.mac to {here.link.mac}, if that is the right card.", severity=Severity.REFUSAL,
            )  # fmt: skip
        if "neighbours" in here.facts.unread:
            continue
        rows = {n.address: n for n in here.facts.neighbours if n.interface == here.rail.interface}
        for peer, address in peer_addresses(here, settings):
            mac, row = settings.fleet.nodes[peer].rails[here.name].mac, rows.get(address)
            if mac is None or (row is not None and row.state == "PERMANENT" and row.mac == mac):
                continue
            has = f"is {row.mac or 'without an answer'} ({row.state})" if row is not None else "is missing"
            yield here.found(
                f"holds no permanent neighbour entry of {address} ({peer}): it {has}, expected {mac}.",
                f"Run ip neigh replace {address} lladdr {mac} dev {here.rail.interface} nud permanent on {here.node}.",
            )  # fmt: skip


@check(
    "rail-neighbour", kind=FABRIC, severity=Severity.REFUSAL, source="users F9, NVIDIA/daqiri#173",
    what="Every peer answers ARP on every rail before a rank starts: RoCE does not wait for it.",
)  # fmt: skip
def _rail_neighbour(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    by_place = {(here.node, here.name): here for here in seen_rails(fleet, settings)}
    for here in by_place.values():
        if not _can_ask(here):
            continue
        states = {n.address: n.state for n in here.facts.neighbours if n.interface == here.rail.interface}
        for peer, address in peer_addresses(here, settings):
            there = by_place.get((peer, here.name))
            if peer in fleet and (there is None or not _can_ask(there)):
                continue  # It cannot answer, and what is wrong there is a finding of its own.
            if states.get(address) in ("FAILED", "INCOMPLETE"):
                yield here.found(
                    f"gets no answer from {address} ({peer}): its neighbour entry is {states[address]}.",
                    f"Check the address and the cable on {peer}.", transient=True,
                )  # fmt: skip


def _can_ask(here: Here) -> bool:
    """Whether a rail's interface is up, has carrier and holds its address: else ARP is neither asked nor answered."""
    link = here.link
    return link is not None and link.up and link.carrier and here.rail.address in link.addresses
