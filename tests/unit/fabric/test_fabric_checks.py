"""Stage 2: every check on made-up machines. Healthy fleets pass; one fault each is found, named, and by that check."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address
from typing import Any

import pytest
from dsv41_supervisor.checks import FABRIC, Finding, Severity, all_checks, run
from dsv41_supervisor.errors import Refused
from dsv41_supervisor.fabric.check import check_fabric
from dsv41_supervisor.fabric.facts import ROCE_V2, Gid, Link, NcclLibrary, NodeFacts, Route, Way
from dsv41_supervisor.settings import Settings, parse

from tests.fixtures.fabric.fleets import FLEETS, LAN, STOCK, at, gid_table, healthy, mac, mapped
from tests.unit.fleets import good

Fleet = dict[str, NodeFacts]


def _settings(topology: str, change: Callable[[dict[str, Any]], None] | None = None) -> Settings:
    document = FLEETS[topology]()
    if change is not None:
        change(document)
    return parse(json.dumps(document))


def _loud(findings: tuple[Finding, ...]) -> list[Finding]:
    return [f for f in findings if f.severity in (Severity.REFUSAL, Severity.WARNING)]


@pytest.mark.parametrize("topology", FLEETS)
def test_a_healthy_fleet_passes_every_check(topology: str) -> None:
    settings = _settings(topology)
    report = check_fabric(settings, healthy(settings))
    assert _loud(report.findings) == []
    assert report.n_rails == {"triangle": 12, "switched": 8, "ring": 16}[topology]


def test_a_fleet_without_rdma_devices_says_so_and_passes() -> None:
    settings = parse(json.dumps(good()))
    facts = {
        node: NodeFacts(
            node=node,
            links={
                "eth0": Link(name="eth0", addresses=(IPv4Interface(f"{here.management_address}/24"),)),
                **{r.interface: Link(name=r.interface, mtu=9000, addresses=(r.address,)) for r in here.rails.values()},
            },
        )
        for node, here in settings.fleet.nodes.items()
    }
    report = check_fabric(settings, facts)
    assert _loud(report.findings) == []
    said = {f.what for f in report.findings if f.check.startswith("rdma-")}
    assert said == {"not applicable: no RDMA devices configured."}


@dataclass(frozen=True)
class Fault:
    """One fault: what is wrong, which check must say it, about which node, with which words."""

    check: str
    node: str | None
    words: tuple[str, ...]
    break_facts: Callable[[Fleet], Fleet] = lambda fleet: fleet
    topology: str = "triangle"
    break_settings: Callable[[dict[str, Any]], None] | None = None
    severity: Severity = Severity.REFUSAL
    also: tuple[str, ...] = field(default=())
    """Other checks that rightly see the same fault."""


def _link(node: str, interface: str, **change: Any) -> Callable[[Fleet], Fleet]:
    def apply(fleet: Fleet) -> Fleet:
        for name, value in change.items():
            fleet = at(fleet, node, f"links.{interface}.{name}", value)
        return fleet

    return apply


def _port(node: str, interface: str, **change: Any) -> Callable[[Fleet], Fleet]:
    def apply(fleet: Fleet) -> Fleet:
        for name, value in change.items():
            fleet = at(fleet, node, f"rdma.roce-{interface}.ports.0.{name}", value)
        return fleet

    return apply


def _set(node: str, path: str, value: Any) -> Callable[[Fleet], Fleet]:
    return lambda fleet: at(fleet, node, path, value)


def _way(node: str, peer: str, **change: Any) -> Callable[[Fleet], Fleet]:
    def changed(ways: tuple[Way, ...]) -> tuple[Way, ...]:
        assert any(str(way.destination) == peer for way in ways)
        return tuple(way.model_copy(update=change) if str(way.destination) == peer else way for way in ways)

    return _set(node, "ways", changed)


def _more_routes(node: str, *routes: Route) -> Callable[[Fleet], Fleet]:
    return _set(node, "routes", lambda there: there + routes)


def _all(*steps: Callable[[Fleet], Fleet]) -> Callable[[Fleet], Fleet]:
    def apply(fleet: Fleet) -> Fleet:
        for step in steps:
            fleet = step(fleet)
        return fleet

    return apply


def _library(**change: Any) -> NcclLibrary:
    return STOCK.model_copy(update=change)


def _environment(**variables: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["engine"].update(environment=variables)


def _management(node: str, **change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["fleet"]["nodes"][node].update(change)


def _rail_setting(node: str, rail: str, **change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["fleet"]["nodes"][node]["rails"][rail].update(change)


def _without_twins(document: dict[str, Any]) -> None:
    for node in document["fleet"]["nodes"].values():
        node["rails"] = {name: rail for name, rail in node["rails"].items() if not name.endswith("-twin")}


def _odd_lengths(document: dict[str, Any]) -> None:
    """One cable's ends differ early, and two other cables only in their last bits."""
    nodes = document["fleet"]["nodes"]
    for node, address in (("ada", "10.20.0.1/16"), ("bob", "10.20.200.2/16")):
        nodes[node]["rails"]["cable0"]["address"] = address
    for node, address in (("bob", "10.21.9.1/30"), ("cyd", "10.21.9.2/30")):
        nodes[node]["rails"]["cable1"]["address"] = address
    for node, address in (("cyd", "10.21.9.5/30"), ("ada", "10.21.9.6/30")):
        nodes[node]["rails"]["cable2"]["address"] = address


def _swapped_ports(document: dict[str, Any]) -> None:
    rails = document["fleet"]["nodes"]["ada"]["rails"]
    one, other = rails["cable0-twin"], rails["cable2-twin"]
    for name in ("interface", "rdma_device"):
        one[name], other[name] = other[name], one[name]


FAULTS = (
    Fault("management-interface", "bob", (f"no interface {LAN}", "fab0a"), _set("bob", f"links.{LAN}", None),
          also=("management-address",)),
    Fault("management-address", "bob", ("lan0 does not hold the management address 192.0.2.12; fab9 does.",
          "Set fleet.nodes.bob.management_interface to fab9."),
          _all(_link("bob", LAN, addresses=()),
               _set("bob", "links.fab9", Link(name="fab9", addresses=(IPv4Interface("192.0.2.12/24"),))))),
    Fault("socket-interface", "bob", ("docker0",), break_settings=_management("bob", management_interface="docker0"),
          break_facts=_set("bob", "links.docker0", Link(name="docker0", addresses=(IPv4Interface("192.0.2.12/24"),)))),
    Fault("socket-interface", "bob", ("the management interface is nebula1 (tun)",),
          break_settings=_management("bob", management_interface="nebula1"),
          break_facts=_set("bob", "links.nebula1", Link(name="nebula1", kind="tun",
                                                        addresses=(IPv4Interface("192.0.2.12/24"),)))),
    Fault("management-on-rail", "ada", ("rail cable0 (fab0a) is also the management network",),
          break_settings=_management("ada", management_interface="fab0a", management_address="10.20.0.1"),
          severity=Severity.WARNING),
    Fault("rail-interface", "cyd", ("rail cable2 (fab0a) does not exist.", "fab0b"), _set("cyd", "links.fab0a", None)),
    Fault("rail-up", "cyd", ("is down.", "ip link set fab0a up on cyd"), _link("cyd", "fab0a", up=False)),
    Fault("rail-carrier", "cyd", ("has no carrier.", "the cable to ada"), _link("cyd", "fab0a", carrier=False)),
    Fault("rail-mtu", "cyd", ("has MTU 1500, expected 9000.", "ip link set fab0a mtu 9000 on cyd"),
          _link("cyd", "fab0a", mtu=1500), also=("ends-mtu",)),
    Fault("rail-address", "cyd", ("has the addresses none, expected 10.20.2.1/30.",),
          _link("cyd", "fab0a", addresses=())),
    Fault("rail-address", "cyd", ("has the addresses 10.20.2.1/24, expected 10.20.2.1/30.",
          "Run ip addr del 10.20.2.1/24 dev fab0a; ip addr add 10.20.2.1/30 dev fab0a on cyd"),
          _link("cyd", "fab0a", addresses=(IPv4Interface("10.20.2.1/24"),))),
    # Its peer's address beside its own: the peer is no longer reached from here.
    Fault("address-foreign", "ada", ("fab0a holds 10.20.0.2/30, which is the address of bob (rail cable0).",
          "Run ip addr del 10.20.0.2/30 dev fab0a on ada"),
          _all(_link("ada", "fab0a", addresses=(IPv4Interface("10.20.0.1/30"), IPv4Interface("10.20.0.2/30"))),
               _way("ada", "10.20.0.2", interface=None, problem="stay on this node"))),
    Fault("address-foreign", "cyd", ("lan0 holds 192.0.2.12/24, which is the address of bob (management).",),
          _link("cyd", LAN, addresses=(IPv4Interface("192.0.2.13/24"), IPv4Interface("192.0.2.12/24")))),
    Fault("rail-persistent", "cyd", ("was set up by hand", "GID index moves"),
          _link("cyd", "fab0a", network_file=""), severity=Severity.WARNING),
    Fault("rail-persistent", "cyd", ("gone after a reboot (/run/NetworkManager",),
          _link("cyd", "fab0a", network_file="/run/NetworkManager/x"), severity=Severity.WARNING),
    Fault("rail-subnet", "ada", ("shares its subnet 10.20.0.0/30 with fab0b (10.20.0.1/30)",),
          _all(_link("ada", "fab0b", addresses=(IPv4Interface("10.21.0.1/30"), IPv4Interface("10.20.0.1/30"))),
               _set("ada", "sysctls.arp_ignore.fab0b", 0)), also=("rail-arp",)),
    Fault("rail-arp", "ada", ("has arp_ignore 0 and arp_announce 2, expected 1 and 2.",),
          _set("ada", "sysctls.arp_ignore.fab0a", 0), severity=Severity.WARNING),
    Fault("rail-route", "ada", ("is not the way to 10.20.0.2 on bob: packets leave through lan0.", "ip rule on ada"),
          _way("ada", "10.20.0.2", interface=LAN)),
    Fault("rail-route", "ada", ("packets leave nowhere, there is no route.",),
          _way("ada", "10.20.0.2", interface=None, problem="leave nowhere, there is no route")),
    Fault("rail-route", "ada", ("packets leave through lan0 (route 10.20.0.0/30 dev lan0 table 7).",
                                "ip route del 10.20.0.0/30 dev lan0 table 7 on ada"),
          _all(_way("ada", "10.20.0.2", interface=LAN), _more_routes(
              "ada", Route(destination=IPv4Network("10.20.0.0/30"), interface=LAN, table=7)))),
    # The wide one is not to blame: the rail's own route is missing.
    Fault("rail-route", "ada", ("packets are thrown away without a word.", "the rail's address with its prefix"),
          _all(_way("ada", "10.20.0.2", interface=None, problem="are thrown away without a word"), _more_routes(
              "ada", Route(destination=IPv4Network("10.0.0.0/8"), kind="blackhole")))),
    Fault("rail-route", "ada", ("(route blackhole 10.20.0.2).", "Run ip route del blackhole 10.20.0.2 on ada"),
          _all(_way("ada", "10.20.0.2", interface=None, problem="are thrown away without a word"), _more_routes(
              "ada", Route(destination=IPv4Network("10.20.0.2/32"), kind="blackhole")))),
    Fault("rail-route", "ada", ("packets leave through a gateway, 10.20.0.9",),
          _way("ada", "10.20.0.2", gateway=IPv4Address("10.20.0.9"))),
    Fault("rail-neighbour", "ada", ("gets no answer from 10.20.0.2 (bob): its neighbour entry is FAILED.",),
          _set("ada", "neighbours.0.state", "FAILED")),
    Fault("rail-speed", "bob", ("runs at 100 Gb/s, expected 200. The module is ACME X1.", "the switch port to 200G"),
          _link("bob", "fab0a", speed_mbit=100000, module="ACME X1"), "switched", severity=Severity.WARNING,
          also=("ends-speed",)),
    Fault("rail-pcie", "bob", ("(0000:01:00.0) runs at 16 GT/s x4, expected 32 x4.", "pull its power"),
          _link("bob", "fab0a", pcie=lambda p: p.model_copy(update={"speed_gts": 16.0})), severity=Severity.WARNING),
    Fault("rail-aer", "bob", ("has counted 2 fatal and 0 non-fatal PCIe errors", "power-cycle bob"),
          _link("bob", "fab0a", pcie=lambda p: p.model_copy(update={"aer_fatal": 2})), severity=Severity.WARNING),
    Fault("rail-errors", "bob", ("has received 17 damaged packets.",),
          _link("bob", "fab0a", counters={"rx_crc_errors": 17}), severity=Severity.WARNING),
    Fault("twin-missing", "ada", ("is alone on its port: its twin fab0b is no rail",), break_settings=_without_twins,
          severity=Severity.WARNING),
    Fault("twin-peer", "ada", ("are twins of one port (p0), but lead to",), break_settings=_swapped_ports,
          break_facts=lambda fleet: fleet,
          also=("rail-address", "rail-route", "rdma-gid", "ends-cabling", "rail-subnet")),
    Fault("ends-mtu", "cyd", ("has MTU 4200, and ada at the other end 9000.", "ip link set fab0a mtu 9000 on cyd"),
          _link("cyd", "fab0a", mtu=4200), also=("rail-mtu",)),
    Fault("ends-speed", "bob", ("runs at 100 Gb/s, and ada at the other end at 200.", "ethtool fab1a on bob"),
          _link("bob", "fab1a", speed_mbit=100000), severity=Severity.WARNING, also=("rail-speed",)),
    Fault("ends-subnet", "bob", ("has 10.99.0.2/24, and ada has 10.30.0.1/24 on it: two subnets.",),
          _all(_link("bob", "fab0a", addresses=(IPv4Interface("10.99.0.2/24"),)),
               _port("bob", "fab0a", gids=gid_table("fab0a", "fe80::9", IPv4Address("10.99.0.2")))),
          "switched", _rail_setting("bob", "a", address="10.99.0.2/24"), also=("rail-route",)),
    Fault("ends-cabling", "ada", ("answer for 10.20.0.2, which is fab1b on bob; expected fab1a on bob",
          "a twin answers for it"),
          _set("ada", "neighbours.0.mac", mac(2, "fab1b"))),
    Fault("ends-path-mtu", "bob", ("has the RDMA path MTU 1024, and ada at the other end 4096.", "mtu 9000 on bob"),
          _port("bob", "fab1a", active_mtu=1024), also=("rdma-path-mtu",)),
    Fault("rdma-path-mtu", "ada", ("has the RDMA path MTU 1024, expected 4096.",),
          _all(_port("bob", "fab1a", active_mtu=1024), _port("ada", "fab0a", active_mtu=1024)),
          severity=Severity.WARNING),
    Fault("rail-idle", "ada", ("has sent 0 bytes over RDMA while rail cable0 sent 2.0 GiB.",),
          _port("ada", "fab0a", counters={"port_xmit_data": 1 << 29}), severity=Severity.WARNING),
    Fault("ring-forwarding", "bob", ("does not forward IPv4",), _set("bob", "sysctls.ip_forward", 0), "ring",
          severity=Severity.WARNING),
    Fault("ring-forwarding", "bob", ("drops what is forwarded from fab1a to fab0a (tables: ip filter)", "Docker"),
          _all(_set("bob", "firewall.forwarded.fab1a>fab0a", "drop"), _set("bob", "firewall.tables", ("ip filter",))),
          "ring", severity=Severity.WARNING),
    Fault("nccl-library", "cyd", ("no libnccl for the ranks: gone.",),
          _all(_set("cyd", "nccl.planned", None), _set("cyd", "unread", {"nccl": "gone"}))),
    Fault("nccl-library", "cyd", ("no libnccl for the ranks: no answer within 20 s.",),
          _all(_set("cyd", "nccl.planned", None), _set("cyd", "unread", {"nccl": "no answer within 20 s"}))),
    Fault("nccl-library", "cyd", ("libnccl was not read: no answer within 0.6 s.",),
          _all(_set("cyd", "nccl.planned", None), _set("cyd", "unread", {"nccl": "no answer within 0.6 s"})),
          severity=Severity.WARNING),
    Fault("nccl-same", None, ("2.30.7 (555555555555) on ada, bob; 2.30.7 (666666666666) on cyd",),
          _set("cyd", "nccl.planned", _library(sha256="6" * 64))),
    Fault("nccl-denied", "cyd", ("NCCL 2.30.4, and that is denied", "NVIDIA/nccl#2167"),
          _set("cyd", "nccl.planned", _library(version="2.30.4"))),
    Fault("nccl-denied", "cyd", ("NCCL 2.28.9, and that is denied: the build in the pip wheel wedges",),
          _set("cyd", "nccl.planned", _library(version="2.28.9", build_id="a7f420a1" + "0" * 32)), "switched"),
    Fault("nccl-topology", "cyd", ("is NCCL 2.30.3, expected 2.30.7 or newer",),
          _set("cyd", "nccl.planned", _library(version="2.30.3", patches=()))),
    Fault("nccl-topology", "cyd", ("is a stock NCCL", "ncclTransportTreeConnect", "NCCL_SWITCHLESS_RING_ONLY"),
          _set("cyd", "nccl.planned.patches", ("subnet-aware",)), "ring"),
    Fault("ends-prefix", None, ("no single one tells every cable from every other",),
          break_settings=_odd_lengths, break_facts=lambda fleet: fleet,
          also=("rail-address", "rdma-gid", "rail-route", "rail-subnet")),
    Fault("nccl-mapped", "cyd", ("has mapped /elsewhere/libnccl.so.2 (2.28.3), planned was /opt/engine/libnccl.so.2",),
          _set("cyd", "nccl.mapped", (_library(path="/elsewhere/libnccl.so.2", version="2.28.3", sha256="1" * 64),)),
          severity=Severity.WARNING),
    Fault("rail-mac", "ada", ("fab0a) has the hardware address", "expected 02:00:00:00:00:99", "fleet.nodes.ada.rails"),
          break_settings=_rail_setting("ada", "cable0", mac="02:00:00:00:00:99")),
    Fault("rail-mac", "bob", ("holds no permanent neighbour entry of 10.20.0.1 (ada): it is ", "(REACHABLE)",
                              f"ip neigh replace 10.20.0.1 lladdr {mac(1, 'fab0a')} dev"),
          break_settings=_rail_setting("ada", "cable0", mac=mac(1, "fab0a")), severity=Severity.WARNING),
    Fault("fabric-unread", "bob", ("rdma of its fabric cannot be read: no answer within 0.6 s.", "dmesg on bob"),
          _set("bob", "unread", {"rdma": "no answer within 0.6 s", "firewall": "nft is not installed"}),
          severity=Severity.WARNING, also=("rdma-device",)),
    Fault("rdma-device", "bob", ("the RDMA devices could not be read: no answer within 5 s.", "dmesg on bob"),
          _all(_set("bob", "unread", {"rdma": "no answer within 5 s"}), _set("bob", "rdma", {})),
          also=("fabric-unread",)),
    Fault("limit-memlock", "cyd", ("unit dsv41-rank@2 may lock 8388608 bytes", "LimitMEMLOCK=infinity"),
          _set("cyd", "limits.memlock_bytes", 8 << 20)),
    Fault("limit-files", "cyd", ("may open 1024 files, expected 1048576.",), _set("cyd", "limits.n_files", 1024)),
    Fault("limit-files", "cyd", ("may open 524288 files",), _set("cyd", "limits.n_files", 524288),
          severity=Severity.WARNING),
    Fault("firewall", "cyd", ("drops connections from peers on fab0a (rail cable2).",),
          _set("cyd", "firewall.incoming.fab0a", "drop")),
    Fault("firewall", "cyd", ("drops connections from peers on lan0, where the ranks meet.",),
          _set("cyd", f"firewall.incoming.{LAN}", "drop")),
    Fault("firewall", "cyd", ("drops connections to peers on fab0a (rail cable2).", "oifname"),
          _set("cyd", "firewall.outgoing.fab0a", "drop")),
    Fault("gdr-assumed", None, ("engine.environment.NCCL_DMABUF_ENABLE is '1'",),
          break_settings=_environment(NCCL_DMABUF_ENABLE="1")),
    Fault("rdma-device", "cyd", ("names the RDMA device roce-fab0a, which does not exist.", "roce-fab0b"),
          _set("cyd", "rdma.roce-fab0a", None)),
    Fault("rdma-device", "cyd", ("names the RDMA device roce-fab0a, which belongs to fab1b.",),
          _all(_set("cyd", "rdma.roce-fab0a.netdevs", ("fab1b",)), _port("cyd", "fab0a", gids=())),
          also=("rdma-gid",)),
    Fault("rdma-port", "cyd", ("has its RDMA port DOWN, Disabled, expected ACTIVE.",),
          _port("cyd", "fab0a", state="DOWN", physical_state="Disabled")),
    Fault("rdma-gid", "cyd", ("has no RoCE v2 GID for 10.20.2.1 on roce-fab0a. Its table: 0: fe80::b IB/RoCE v1",),
          _port("cyd", "fab0a", gids=lambda gids: tuple(g for g in gids if g.ipv4 is None))),
    Fault("rdma-gid", "cyd", ("4: 10.20.2.1 IB/RoCE v1 on fab0a.",),
          _port("cyd", "fab0a", gids=lambda gids: tuple(g for g in gids if g.index != 5))),
    Fault("rdma-gid-choice", "cyd", ("need different GID indices", "roce-fab0a (rail cable2) needs 5, not 2"),
          _all(
              _port("cyd", "fab0b", gids=gid_table("fab0b", "fe80::c", IPv4Address("10.21.2.1"), 7)),
              _port("cyd", "fab0a", gids=lambda gids: (
                  *gids[:2], Gid(index=2, gid=mapped(IPv4Address("10.20.2.9")), type=ROCE_V2, netdev="fab0a"),
                  gids[3])))),
    Fault("nccl-hca", "ada", ("'=mlx5_0' selects none of this node's HCAs (roce-fab",),
          break_settings=_environment(NCCL_IB_HCA="=mlx5_0")),
    Fault("nccl-hca", "ada", ("leaves out roce-fab0b, roce-fab1b.",),
          break_settings=_environment(NCCL_IB_HCA="=roce-fab0a,roce-fab1a"), severity=Severity.WARNING),
    Fault("nccl-hca", "ada", ("would also select roce-fab1a, roce-fab1b",), topology="switched",
          break_settings=_environment(NCCL_IB_HCA="roce"), severity=Severity.WARNING),
    Fault("rdma-loss", "ada", ("has counted out_of_sequence 4, np_cnp_sent 9 since power-on.",),
          _port("ada", "fab0a", hw_counters={"out_of_sequence": 4, "np_cnp_sent": 9}), severity=Severity.NOTE),
    Fault("lossless-class", "ada", ("pauses no priority (PFC)", "dcb pfc set dev fab0a prio-pfc 3:on"),
          _link("ada", "fab0a", pfc_priorities=()), "switched", severity=Severity.WARNING),
    Fault("lossless-class", "ada", ("pauses the priorities 3, but RoCE runs in 0", "traffic_class to 106"),
          topology="switched", break_settings=lambda d: d["engine"].pop("nccl"), severity=Severity.WARNING),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{f.check}-{i}" for i, f in enumerate(FAULTS)])
def test_a_fault_is_found_by_its_check_on_the_right_node(fault: Fault) -> None:
    settings = _settings(fault.topology, fault.break_settings)
    facts = fault.break_facts(healthy(_settings(fault.topology)))
    findings = run({FABRIC: facts}, settings)
    mine = [f for f in findings if f.check == fault.check and f.severity is fault.severity]
    assert mine, f"not found; instead: {[str(f) for f in _loud(findings)]}"
    said = [f for f in mine if all(word in f"{f.what} {f.do_next}" for word in fault.words)]
    assert said, f"other words: {[str(f) for f in mine]}"
    assert said[0].node == fault.node
    others = {f.check for f in _loud(findings)} - {fault.check, *fault.also}
    assert not others, f"also found: {[str(f) for f in _loud(findings) if f.check in others]}"


def test_every_fabric_check_has_a_fault_here() -> None:
    assert {c.id for c in all_checks() if c.kind == FABRIC} == {f.check for f in FAULTS}


def test_refusals_carry_node_rank_check_and_the_next_step() -> None:
    settings = _settings("triangle")
    report = check_fabric(settings, _link("cyd", "fab0a", mtu=1500)(healthy(settings)))
    refusal = next(r for r in report.refusals if r.check == "rail-mtu")
    assert str(refusal) == (
        "cyd rank 2, fabric: rail cable2 (fab0a) has MTU 1500, expected 9000. "
        "Run ip link set fab0a mtu 9000 on cyd; both ends must agree. [rail-mtu]"
    )


def test_an_override_lets_one_check_pass_and_keeps_it_visible() -> None:
    settings = _settings("triangle")
    facts = _set("cyd", "limits.memlock_bytes", 8 << 20)(_port("cyd", "fab0a", state="DOWN")(healthy(settings)))
    report = check_fabric(settings, facts, override=["limit-memlock"])
    assert [r.check for r in report.refusals] == ["rdma-port"]
    assert [f.check for f in report.overridden] == ["limit-memlock"]
    by_settings = _settings("triangle", lambda d: d.update(checks={"override": ["limit-memlock", "rdma-port"]}))
    assert check_fabric(by_settings, facts).refusals == ()


def test_an_override_of_a_check_that_does_not_exist_is_refused_with_the_settings() -> None:
    with pytest.raises(Refused, match="checks.override names 'rail-mut'"):
        _settings("triangle", lambda d: d.update(checks={"override": ["rail-mut"]}))


def test_one_node_alone_is_judged_by_what_it_sees() -> None:
    settings = _settings("ring")
    facts = healthy(settings)
    assert _loud(check_fabric(settings, {"bob": facts["bob"]}).findings) == []


def test_different_indices_are_fine_where_nccl_would_choose_each() -> None:
    settings = _settings("triangle")
    facts = _port("cyd", "fab0b", gids=gid_table("fab0b", "fe80::c", IPv4Address("10.21.2.1"), 7))(healthy(settings))
    findings = [f for f in run({FABRIC: facts}, settings) if f.check == "rdma-gid-choice"]
    assert [f.severity for f in findings] == [Severity.NOTE]
    assert "different GID indices" in findings[0].what


def test_permanent_entries_of_named_hardware_addresses_are_good() -> None:
    settings = _settings("triangle", _rail_setting("ada", "cable0", mac=mac(1, "fab0a")))

    def permanent(rows: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            row.model_copy(update={"state": "PERMANENT"}) if str(row.address) == "10.20.0.1" else row for row in rows
        )

    facts = at(healthy(settings), "bob", "neighbours", permanent)
    assert _loud(check_fabric(settings, facts).findings) == []


def test_a_broken_check_is_a_finding_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _settings("triangle")
    facts = _link("cyd", "fab0a", mtu=1500)(healthy(settings))
    facts = at(facts, "ada", "ways", (None,))
    findings = run({FABRIC: facts}, settings)
    assert any(f.check == "rail-route" and "broke" in f.what for f in findings)
    assert any(f.check == "rail-mtu" for f in findings)


def test_unread_facts_are_unknown_and_said_so() -> None:
    settings = _settings("switched")
    facts = healthy(settings)
    for path, value in (("firewall", None), ("limits", None), ("links.fab0a.pfc_priorities", None),
                        ("links.fab0a.speed_mbit", None), ("links.fab0a.pcie", None),
                        ("links.fab0a.network_file", None), ("links.fab0a.phys_switch_id", None),
                        ("unread", {"firewall": "nft is not installed", "pfc": "its driver has no DCB"})):  # fmt: skip
        facts = at(facts, "ada", path, value)
    report = check_fabric(settings, facts)
    assert _loud(report.findings) == []
    said = {f.check: f.what for f in report.findings if f.node == "ada" and f.severity is Severity.SKIPPED}
    assert said["firewall"] == "the packet filter cannot be read: nft is not installed."
    assert said["lossless-class"] == "the PFC of rail a (fab0a) cannot be read: its driver has no DCB."
    assert {"limit-memlock", "limit-files", "rail-speed", "rail-pcie", "rail-persistent", "twin-missing"} <= set(said)


def test_a_rail_that_netplan_sets_up_at_every_boot_is_persistent() -> None:
    settings = _settings("triangle")
    netplan = "/run/systemd/network/10-netplan-fab0a.network"
    assert _loud(check_fabric(settings, _link("cyd", "fab0a", network_file=netplan)(healthy(settings))).findings) == []


def test_a_stray_address_of_ipv6_does_not_matter() -> None:
    settings = _settings("triangle")
    more = Gid(index=9, gid=IPv6Address("2001:db8::1"), type=ROCE_V2, netdev="fab0a")
    facts = _port("cyd", "fab0a", gids=lambda gids: (*gids, more))(healthy(settings))
    assert _loud(check_fabric(settings, facts).findings) == []
