"""What only shows when both ends of a cable are compared."""

from __future__ import annotations

from collections.abc import Iterator

from ...checks import FABRIC, Found, Severity, check
from ...rank.nccl import subnet_prefix_length
from ...settings import Settings, Topology
from .common import NO_RDMA, Fleet, Here, ends, has_rdma, peer_addresses, rails, seen_rails, skipped


@check(
    "ends-mtu", kind=FABRIC, severity=Severity.REFUSAL, source="users F6, tonyd2wild V4 vision recipe #38",
    what="Both ends of every cable have the same MTU: else small packets pass and large transfers fail with error 12.",
)  # fmt: skip
def _ends_mtu(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for one, other in ends(fleet, settings):
        if one.link and other.link and one.link.mtu != other.link.mtu:
            odd, even = (one, other) if one.link.mtu != settings.fleet.mtu else (other, one)
            yield odd.found(
                f"has MTU {odd.link.mtu if odd.link else 0}, and {even.node} at the other end "
                f"{even.link.mtu if even.link else 0}.",
                f"Run ip link set {odd.rail.interface} mtu {settings.fleet.mtu} on {odd.node}.",
            )


@check(
    "ends-speed", kind=FABRIC, severity=Severity.WARNING, source="users F14",
    what="Both ends of every cable run at the same speed.",
)  # fmt: skip
def _ends_speed(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for one, other in ends(fleet, settings):
        of_one, of_other = (end.link.speed_mbit if end.link else None for end in (one, other))
        if of_one is not None and of_other is not None and of_one != of_other:
            slow, fast = (one, other) if of_one < of_other else (other, one)
            yield slow.found(
                f"runs at {min(of_one, of_other) // 1000} Gb/s, and {fast.node} at the other end at "
                f"{max(of_one, of_other) // 1000}.",
                f"Run ethtool {slow.rail.interface} on {slow.node}: it shows what this end offers.",
            )


@check(
    "ends-subnet", kind=FABRIC, severity=Severity.REFUSAL, source="users F8",
    what="Behind a switch, rails of one name are in one subnet: else their nodes do not meet on it.",
)  # fmt: skip
def _ends_subnet(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for one, other in ends(fleet, settings):
        if one.rail.address.network != other.rail.address.network:
            yield other.found(
                f"has {other.rail.address}, and {one.node} has {one.rail.address} on it: two subnets.",
                "Give all rails of one name addresses of one subnet.",
            )


@check(
    "ends-prefix", kind=FABRIC, severity=Severity.REFUSAL, source="NCCL 2.30.7 src/transport/net_ib/connect.cc",
    what="One prefix length tells all cables apart: NCCL has one for the whole fleet.",
)  # fmt: skip
def _ends_prefix(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if settings.fleet.topology is Topology.SWITCHED or not has_rdma(settings):
        yield skipped("not applicable: every port reaches every node, or no RDMA devices configured")
    elif subnet_prefix_length(settings) is None:
        yield Found(
            None, "the rails' subnets have different lengths, and no single one tells every cable from every other.",
            "Give all rails subnets of one length, such as a /24 each.", where="fleet.nodes.*.rails.*.address",
        )  # fmt: skip


@check(
    "ends-cabling", kind=FABRIC, severity=Severity.REFUSAL, source="users F8, F26",
    what="The hardware address that answers on a rail is the peer's own interface of that rail.",
)  # fmt: skip
def _ends_cabling(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    macs = {
        link.mac: (node, name)
        for node, facts in fleet.items()
        for name, link in facts.links.items()
        if link.mac and link.mac != "00:00:00:00:00:00"
    }
    by_place = {(here.node, here.name): here for here in seen_rails(fleet, settings)}
    for here in by_place.values():
        seen = {n.address: n.mac for n in here.facts.neighbours if n.interface == here.rail.interface}
        for peer, address in peer_addresses(here, settings):
            there = by_place.get((peer, here.name))
            mac = seen.get(address)
            if there is None or there.link is None or not mac or not there.link.mac or mac == there.link.mac:
                continue
            who = macs.get(mac)
            yield here.found(
                f"hears {mac} answer for {address}, which is "
                + (f"{who[1]} on {who[0]}" if who else "nobody of this fleet")
                + f"; expected {there.rail.interface} on {peer} ({there.link.mac}).",
                f"The cable goes elsewhere, or a twin answers for it: check the cable, and arp_ignore=1 on {peer}.",
            )


@check(
    "ends-path-mtu", kind=FABRIC, severity=Severity.REFUSAL, source="users F5, F6",
    what="Both ends of every cable have the same RDMA path MTU.",
)  # fmt: skip
def _ends_path_mtu(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if not has_rdma(settings):
        yield skipped(NO_RDMA)
        return
    for one, other in ends(fleet, settings):
        of_one, of_other = (end.port.active_mtu if end.port else None for end in (one, other))
        if of_one is not None and of_other is not None and of_one != of_other:
            low, high = (one, other) if of_one < of_other else (other, one)
            yield low.found(
                f"has the RDMA path MTU {min(of_one, of_other)}, and {high.node} at the other end "
                f"{max(of_one, of_other)}.",
                f"Run ip link set {low.rail.interface} mtu {settings.fleet.mtu} on {low.node}.",
            )


@check(
    "rail-idle", kind=FABRIC, severity=Severity.WARNING, source="users F10, knap switchless-ring",
    what="Every HCA of the plan carries its share: one that stays at zero while others work is not used.",
)  # fmt: skip
def _rail_idle(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if not has_rdma(settings):
        yield skipped(NO_RDMA)
        return
    for node in fleet:
        sent = {h.name: (h, _sent_bytes(h)) for h in rails(fleet, settings) if h.node == node}
        known = {name: n for name, (_, n) in sent.items() if n is not None}
        if max(known.values(), default=0) < 1 << 30:
            continue
        for name, n in known.items():
            if n < 1 << 20:
                busiest = max(known, key=lambda k: known[k])
                yield sent[name][0].found(
                    f"has sent {n} bytes over RDMA while rail {busiest} sent {known[busiest] / 2**30:.1f} GiB.",
                    "Run dsv41 doctor --deep: it sends over each HCA, and says what NCCL used.",
                )


def _sent_bytes(here: Here) -> int | None:
    """port_xmit_data counts words of four bytes."""
    words = here.port.counters.get("port_xmit_data") if here.port is not None else None
    return words * 4 if words is not None else None


@check(
    "ring-forwarding", kind=FABRIC, severity=Severity.WARNING, source="users F12, ring#174, ring docs/PREREQUISITES",
    what="In a ring every node forwards between its rails: Docker's FORWARD DROP cuts opposite nodes off. The ranks "
    "themselves need neighbours and the management network only.",
)  # fmt: skip
def _ring_forwarding(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if settings.fleet.topology is not Topology.RING:
        yield skipped("not applicable: the fleet is no ring")
        return
    for node, facts in fleet.items():
        if facts.sysctls.ip_forward == 0:
            yield Found(
                node, "does not forward IPv4, so its two neighbours cannot reach each other through it.",
                "Set net.ipv4.ip_forward=1 if anything is to reach the opposite node over the fabric.",
                where="net.ipv4.ip_forward",
            )  # fmt: skip
        if facts.firewall is None:
            yield skipped(f"the packet filter cannot be read: {facts.why_unread('firewall')}", node)
            continue
        for pair, verdict in facts.firewall.forwarded.items():
            if verdict == "drop":
                there = f" (tables: {', '.join(facts.firewall.tables)})" if facts.firewall.tables else ""
                yield Found(
                    node, f"its packet filter drops what is forwarded from {pair.replace('>', ' to ')}{there}.",
                    "Accept forwarding between the rails in a rule that runs before Docker's, such as iptables -I "
                    f"DOCKER-USER -i {pair.replace('>', ' -o ')} -j ACCEPT, by a unit ordered after docker.service: "
                    "dockerd builds its chains anew at every start.", where=pair,
                )  # fmt: skip
