"""Management network, interfaces, ports and cables of the rails, each node by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from ipaddress import IPv4Address

from ...checks import FABRIC, Found, Severity, check
from ...settings import Device, Settings
from ..facts import NodeFacts
from .common import (
    NO_RDMA,
    Fleet,
    Here,
    because,
    has_rdma,
    not_read,
    physical_port,
    rails,
    rdma_rails,
    seen_rails,
    skipped,
)

SPEED_MBIT = 200000
PCIE_GTS, PCIE_WIDTH = 32.0, 4
_NOT_FOR_SOCKETS = ("lo", "docker", "tailscale", "virbr", "br-", "cni", "flannel", "podman", "wg")
_TUNNELS = ("tun", "wireguard", "vxlan", "gre", "ipip", "sit", "dummy")
"""Kinds as the kernel names them: a VPN's interface may have any name."""


@check(
    "management-interface", kind=FABRIC, severity=Severity.REFUSAL, source="users F4, vllm PR#40991",
    what="The management interface exists on the node.",
)  # fmt: skip
def _management_interface(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    yield from not_read(fleet, "links", "whether the management interface exists")
    for node, facts in fleet.items():
        name = settings.fleet.nodes[node].management_interface
        if name not in facts.links and "links" not in facts.unread:
            yield Found(
                node, f"there is no interface {name} for the management network.",
                f"Set fleet.nodes.{node}.management_interface to one of {', '.join(sorted(facts.links))}.",
                where=f"fleet.nodes.{node}.management_interface",
            )  # fmt: skip


@check(
    "management-address", kind=FABRIC, severity=Severity.REFUSAL, source="users F4, vllm PR#40991",
    what="The management interface holds the management address: Gloo and NCCL bootstrap by that name.",
)  # fmt: skip
def _management_address(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        here = settings.fleet.nodes[node]
        link = facts.links.get(here.management_interface)
        if link is None or here.management_address.is_loopback:
            continue
        if here.management_address not in {a.ip for a in link.addresses}:
            holder = _holder(facts, here.management_address)
            yield Found(
                node,
                f"{link.name} does not hold the management address {here.management_address}"
                + (f"; {holder} does." if holder else "."),
                f"Set fleet.nodes.{node}.management_interface to {holder}." if holder
                else f"Give it that address, or correct fleet.nodes.{node}.management_address.",
                where=f"fleet.nodes.{node}.management_address",
            )  # fmt: skip


def _holder(facts: NodeFacts, address: IPv4Address) -> str | None:
    return next((n for n, link in facts.links.items() if address in {a.ip for a in link.addresses}), None)


@check(
    "socket-interface", kind=FABRIC, severity=Severity.REFUSAL, source="users F20, dgx-spark.warehack.ing",
    what="Gloo and NCCL do not bootstrap over loopback, a container bridge or a VPN.",
)  # fmt: skip
def _socket_interface(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if settings.engine.device is not Device.CUDA or settings.fleet.world_size == 1:
        yield skipped("not applicable: the ranks are on one machine or on CPU")
        return
    for node, facts in fleet.items():
        name = settings.fleet.nodes[node].management_interface
        kind = facts.links[name].kind if name in facts.links else None
        if name == "lo" or name.startswith(_NOT_FOR_SOCKETS[1:]) or kind in _TUNNELS:
            shown = f"{name} ({kind})" if kind in _TUNNELS else name
            yield Found(
                node, f"the management interface is {shown}, which leads to no other machine of the fleet directly.",
                f"Set fleet.nodes.{node}.management_interface to the wired LAN.",
                where=f"fleet.nodes.{node}.management_interface",
            )  # fmt: skip


@check(
    "management-on-rail", kind=FABRIC, severity=Severity.WARNING, source="users F27, spark-arena/sparkrun#67",
    what="The management network is not one of the rails: from outside nobody reaches an address inside the fabric.",
)  # fmt: skip
def _management_on_rail(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for here in rails(fleet, settings):
        node = settings.fleet.nodes[here.node]
        if node.management_interface == here.rail.interface or node.management_address in here.rail.address.network:
            yield here.found(
                f"is also the management network ({node.management_address}).",
                f"Put fleet.nodes.{here.node}.management_address on another network: whoever stands outside the fabric "
                "cannot reach it, and its traffic is in the way of the ranks'.",
            )


@check(
    "rail-interface", kind=FABRIC, severity=Severity.REFUSAL, source="users F3, mia41 PR#9",
    what="The interface of every rail exists.",
)  # fmt: skip
def _rail_interface(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    yield from not_read(fleet, "links", "whether the interfaces of the rails exist")
    for here in rails(fleet, settings):
        if here.link is None and "links" not in here.facts.unread:
            have = ", ".join(sorted(here.facts.links)) or "none"
            yield here.found("does not exist.", f"Set {here.setting}.interface to one of {have}.")


@check(
    "rail-up", kind=FABRIC, severity=Severity.REFUSAL, source="users F13",
    what="The interface of every rail is up.",
)  # fmt: skip
def _rail_up(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for here in seen_rails(fleet, settings):
        if here.link and not here.link.up:
            yield here.found("is down.", f"Run ip link set {here.rail.interface} up on {here.node}.", transient=True)


@check(
    "rail-carrier", kind=FABRIC, severity=Severity.REFUSAL, source="users F3",
    what="Every rail has carrier: the other end is there.",
)  # fmt: skip
def _rail_carrier(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for here in seen_rails(fleet, settings):
        if here.link and here.link.up and not here.link.carrier:
            to = f" to {here.rail.peer}" if here.rail.peer else " to the switch"
            yield here.found("has no carrier.", f"Check the cable{to} and the other end.", transient=True)


@check(
    "rail-mtu", kind=FABRIC, severity=Severity.REFUSAL, source="users F6, tonyd2wild V4 vision recipe #38",
    what="Every rail has the fleet's MTU; a firmware update sets it back to 1500 on one end.",
)  # fmt: skip
def _rail_mtu(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    want = settings.fleet.mtu
    for here in seen_rails(fleet, settings):
        if here.link and here.link.mtu != want:
            yield here.found(
                f"has MTU {here.link.mtu}, expected {want}.",
                f"Run ip link set {here.rail.interface} mtu {want} on {here.node}; both ends must agree.",
            )


@check(
    "rail-speed", kind=FABRIC, severity=Severity.WARNING, source="users F14, play multi-sparks-through-switch",
    what="Every rail runs at 200 Gb/s; a switch port negotiates 100 by itself.",
)  # fmt: skip
def _rail_speed(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if not has_rdma(settings):
        yield skipped(NO_RDMA)
        return
    for here in rdma_rails(fleet, settings):
        if here.link is None or not here.link.carrier:
            continue
        if here.link.speed_mbit is None:
            yield skipped(f"the speed of {here.title} cannot be read{because(here.facts, 'sysfs')}", here.node)
        elif here.link.speed_mbit < SPEED_MBIT:
            module = f" The module is {here.link.module}." if here.link.module else ""
            yield here.found(
                f"runs at {here.link.speed_mbit // 1000} Gb/s, expected {SPEED_MBIT // 1000}.{module}",
                "Set the switch port to 200G without autonegotiation." if here.rail.peer is None
                else f"Reseat or change the cable to {here.rail.peer}: it must be a 200G one.",
            )  # fmt: skip


@check(
    "rail-pcie", kind=FABRIC, severity=Severity.WARNING, source="users F15, play PR#108",
    what="The PCIe function behind every rail runs at Gen5 x4.",
)  # fmt: skip
def _rail_pcie(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if not has_rdma(settings):
        yield skipped(NO_RDMA)
        return
    for here in rdma_rails(fleet, settings):
        pcie = here.link.pcie if here.link else None
        if pcie is None or pcie.speed_gts is None or pcie.width is None:
            why = because(here.facts, "sysfs" if here.link is not None else "links")
            yield skipped(f"the PCIe link of {here.title} cannot be read{why}", here.node)
        elif pcie.speed_gts < PCIE_GTS or pcie.width < PCIE_WIDTH:
            yield here.found(
                f"({pcie.address}) runs at {pcie.speed_gts:g} GT/s x{pcie.width}, expected {PCIE_GTS:g} x{PCIE_WIDTH}.",
                f"Shut {here.node} down and pull its power for a minute; a reboot does not train the link anew.",
            )


@check(
    "rail-aer", kind=FABRIC, severity=Severity.WARNING, source="users F16, mia2x#146",
    what="No PCIe error was counted behind a rail: recovery from a fatal one locks the machine up.",
)  # fmt: skip
def _rail_aer(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for here in seen_rails(fleet, settings):
        pcie = here.link.pcie if here.link else None
        if pcie is not None and (pcie.aer_fatal or pcie.aer_nonfatal):
            yield here.found(
                f"({pcie.address}) has counted {pcie.aer_fatal or 0} fatal and {pcie.aer_nonfatal or 0} non-fatal PCIe "
                "errors since power-on.",
                f"Drain the fleet and power-cycle {here.node}; if they come back, the adapter is failing.",
            )


@check(
    "rail-errors", kind=FABRIC, severity=Severity.WARNING, source="users F15",
    what="No rail counts damaged packets: a bad cable or module.",
)  # fmt: skip
def _rail_errors(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for here in seen_rails(fleet, settings):
        counters = here.link.counters if here.link else {}
        damaged = counters.get("rx_crc_errors", 0)
        if damaged:
            yield here.found(
                f"has received {damaged} damaged packets.",
                f"Reseat the cable{' to ' + here.rail.peer if here.rail.peer else ''}, then look whether it grows.",
            )


@check(
    "twin-missing", kind=FABRIC, severity=Severity.WARNING, source="users F7, F26, play connect-two",
    what="Both PCIe twins of a used port are rails: one alone carries half of what the cable can.",
)  # fmt: skip
def _twin_missing(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if not has_rdma(settings):
        yield skipped(NO_RDMA)
        return
    for here in rdma_rails(fleet, settings):
        if here.link is None:
            continue
        port = physical_port(here.link)
        if port is None and (why := because(here.facts, "sysfs")):
            yield skipped(f"which port {here.title} belongs to cannot be read{why}", here.node)
            continue
        if port is None:
            yield skipped(f"the driver does not say which port {here.title} belongs to", here.node)
            continue
        used = {rail.interface for rail in settings.fleet.nodes[here.node].rails.values()}
        twins = {n for n, link in here.facts.links.items() if physical_port(link) == port and n != here.link.name}
        if twins and not twins & used:
            yield here.found(
                f"is alone on its port: its twin {', '.join(sorted(twins))} is no rail, so the cable gives half.",
                f"Add a rail for it on {here.node} and on its peer, in a subnet of its own.",
            )


@check(
    "twin-peer", kind=FABRIC, severity=Severity.REFUSAL, source="users F7, F26, NVIDIA/NemoClaw#8520",
    what="Rails on the twins of one port lead to the same node: there is one cable.",
)  # fmt: skip
def _twin_peer(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    ports: dict[tuple[str, tuple[str, str]], list[Here]] = defaultdict(list)
    for here in seen_rails(fleet, settings):
        port = physical_port(here.link) if here.link else None
        if port is not None:
            ports[here.node, port].append(here)
    for (_, port), together in ports.items():
        first = together[0]
        for other in together[1:]:
            if other.rail.peer != first.rail.peer:
                yield other.found(
                    f"and {first.title} are twins of one port ({port[1]}), but lead to {other.rail.peer} and "
                    f"{first.rail.peer}.",
                    "Correct interface or peer of one of them: both must lead to the node the cable goes to.",
                )
