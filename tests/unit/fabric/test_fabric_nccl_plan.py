"""What NCCL and Gloo are told: names of this node, GIDs of this moment, and a refusal instead of a guess."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address
from typing import Any

import pytest
from dsv41_supervisor.errors import Refused
from dsv41_supervisor.fabric.facts import ROCE_V1, ROCE_V2, Gid, NodeFacts, RdmaPort
from dsv41_supervisor.fabric.gids import covering_network, find_gid, nccl_chooses
from dsv41_supervisor.rank.hca import HcaEntry, HcaList, exact_list, parse_hca
from dsv41_supervisor.rank.nccl import denied, nccl_environment, subnet_prefix_length
from dsv41_supervisor.rank.plan import Boot, launch_plan
from dsv41_supervisor.settings import Settings, parse
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.fixtures.fabric.fleets import FLEETS, LAN, at, gid_table, healthy, mapped
from tests.unit.fleets import good

BOOT = Boot("20260102T030405-abcd", 7, 20007)


def _settings(topology: str, change: Callable[[dict[str, Any]], None] | None = None) -> Settings:
    document = FLEETS[topology]()
    if change is not None:
        change(document)
    return parse(json.dumps(document))


def _planned(settings: Settings, node: str, facts: dict[str, NodeFacts]) -> dict[str, str]:
    return launch_plan(settings, node, BOOT, facts[node]).environment


def _nccl(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(("NCCL_", "GLOO_"))}


def test_a_triangle_takes_the_port_of_each_peer_and_never_falls_back_to_tcp() -> None:
    settings = _settings("triangle")
    assert _nccl(_planned(settings, "bob", healthy(settings))) == {
        "GLOO_SOCKET_IFNAME": LAN,
        "NCCL_SOCKET_IFNAME": f"={LAN}",
        "NCCL_IB_HCA": "=roce-fab1a:1,roce-fab1b:1,roce-fab0a:1,roce-fab0b:1",
        "NCCL_IB_GID_INDEX": "5",
        "NCCL_NET": "IB",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_NET_GDR_LEVEL": "0",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        "NCCL_CROSS_NIC": "1",
        "NCCL_IB_SUBNET_PREFIX_LEN": "30",
    }


def test_a_switched_fleet_merges_twins_and_carries_its_traffic_class() -> None:
    settings = _settings("switched", lambda d: d["engine"]["nccl"].update(
        buffer_bytes=1 << 20, protocol="^LL128", min_channels=2, max_channels=8))  # fmt: skip
    environment = _planned(settings, "cyd", healthy(settings))
    assert environment["NCCL_IB_HCA"] == "=roce-fab0a:1,roce-fab0b:1"
    assert environment["NCCL_IB_TC"] == "106"
    assert environment["NCCL_BUFFSIZE"] == "1048576"
    assert environment["NCCL_PROTO"] == "^LL128"
    assert (environment["NCCL_MIN_NCHANNELS"], environment["NCCL_MAX_NCHANNELS"]) == ("2", "8")
    assert not {"NCCL_IB_MERGE_NICS", "NCCL_SWITCHLESS_RING_ONLY", "NCCL_ALGO"} & set(environment)


def test_a_ring_has_the_patched_library_and_its_flags() -> None:
    settings = _settings("ring", lambda d: d["engine"].update(environment={"LD_PRELOAD": "/opt/jemalloc.so"}))
    environment = _planned(settings, "dee", healthy(settings))
    assert environment["NCCL_SWITCHLESS_RING_ONLY"] == "1"
    assert environment["NCCL_ALGO"] == "Ring"
    assert environment["NCCL_IB_MERGE_NICS"] == "0"
    assert environment["SGLANG_NCCL_SO_PATH"] == "/opt/ring/libnccl.so.2"
    assert environment["LD_PRELOAD"] == "/opt/ring/libnccl.so.2:/opt/jemalloc.so"


@pytest.mark.parametrize(
    ("addresses", "bits"),
    [
        (("10.0.1.1/24", "10.0.2.1/24", "10.0.3.1/24"), 24),
        (("10.0.0.1/30", "10.0.0.5/30", "10.0.0.9/30"), 30),
        # A /16 and two /24s: 24 bits still tell them apart, because the ends of the /16 agree in them.
        (("10.1.0.1/16", "10.0.2.1/24", "10.0.3.1/24"), 24),
    ],
)
def test_nccl_is_told_how_long_a_cables_subnet_is(addresses: tuple[str, str, str], bits: int) -> None:
    def change(document: dict[str, Any]) -> None:
        nodes = document["fleet"]["nodes"]
        for number, (one, other) in enumerate((("ada", "bob"), ("bob", "cyd"), ("cyd", "ada"))):
            for node in (one, other):
                del nodes[node]["rails"][f"cable{number}-twin"]
            first = IPv4Interface(addresses[number])
            nodes[one]["rails"][f"cable{number}"]["address"] = str(first)
            nodes[other]["rails"][f"cable{number}"]["address"] = f"{first.ip + 1}/{first.network.prefixlen}"

    assert subnet_prefix_length(_settings("triangle", change)) == bits


def test_names_differ_between_nodes_as_their_cables_do() -> None:
    settings = _settings("triangle", lambda d: d["fleet"]["nodes"]["cyd"].update(management_interface="eth7"))
    facts = healthy(settings)
    facts = at(facts, "cyd", "links.eth7", facts["cyd"].links[LAN].model_copy(update={"name": "eth7"}))
    facts = at(facts, "cyd", f"links.{LAN}", None)
    planned = {node: _planned(settings, node, facts) for node in facts}
    assert {node: e["GLOO_SOCKET_IFNAME"] for node, e in planned.items()} == {"ada": LAN, "bob": LAN, "cyd": "eth7"}


def test_the_socket_interface_is_the_one_that_holds_the_address() -> None:
    settings = _settings("triangle")
    facts = healthy(settings)
    moved = facts["bob"].links[LAN].model_copy(update={"name": "bond0"})
    facts = at(at(facts, "bob", f"links.{LAN}.addresses", ()), "bob", "links.bond0", moved)
    assert _planned(settings, "bob", facts)["NCCL_SOCKET_IFNAME"] == "=bond0"


def test_no_gid_for_a_rail_is_a_refusal_with_the_table_and_no_fallback() -> None:
    settings = _settings("triangle")
    port = "rdma.roce-fab0a.ports.0.gids"
    facts = at(healthy(settings), "cyd", port, gid_table("fab0a", "fe80::b", IPv4Address("10.9.9.9")))
    with pytest.raises(Refused) as refused:
        _planned(settings, "cyd", facts)
    (refusal,) = refused.value.refusals
    assert refusal.check == "rdma-gid"
    assert "rail cable2 (roce-fab0a) has no RoCE v2 GID for 10.20.2.1. Its table: 0: fe80::b IB/RoCE v1" in refusal.what
    assert "5: 10.9.9.9 RoCE v2 on fab0a" in refusal.what


def test_rails_with_rdma_are_never_planned_blind() -> None:
    with pytest.raises(Refused, match="roce-fab0a was not found"):
        launch_plan(_settings("triangle"), "ada", BOOT)


def test_a_gid_that_moved_since_the_last_boot_is_used_where_it_is_now() -> None:
    settings = _settings("triangle")
    facts = healthy(settings)
    for rail in settings.fleet.nodes["cyd"].rails.values():
        moved = gid_table(rail.interface, "fe80::b", rail.address.ip, 4)
        facts = at(facts, "cyd", f"rdma.{rail.rdma_device}.ports.0.gids", moved)
    assert _planned(settings, "cyd", facts)["NCCL_IB_GID_INDEX"] == "4"
    assert _planned(settings, "ada", facts)["NCCL_IB_GID_INDEX"] == "5"


def test_hcas_with_different_indices_are_left_to_nccl_when_it_finds_the_same() -> None:
    settings = _settings("triangle")
    twin = gid_table("fab0b", "fe80::c", IPv4Address("10.21.2.1"), 7)
    environment = _planned(settings, "cyd", at(healthy(settings), "cyd", "rdma.roce-fab0b.ports.0.gids", twin))
    assert environment["NCCL_IB_GID_INDEX"] == "-1"
    assert environment["NCCL_IB_ROCE_VERSION_NUM"] == "2"
    assert environment["NCCL_IB_ADDR_FAMILY"] == "AF_INET"
    assert IPv4Address("10.20.2.1") in IPv4Network(environment["NCCL_IB_ADDR_RANGE"])


def test_hcas_with_different_indices_are_refused_when_nccl_would_take_another() -> None:
    settings = _settings("triangle")
    facts = at(healthy(settings), "cyd", "rdma.roce-fab0b.ports.0.gids",
               gid_table("fab0b", "fe80::c", IPv4Address("10.21.2.1"), 7))  # fmt: skip
    stray = Gid(index=2, gid=mapped(IPv4Address("10.20.2.9")), type=ROCE_V2, netdev="fab0a")
    own = facts["cyd"].rdma["roce-fab0a"].ports[0].gids
    facts = at(facts, "cyd", "rdma.roce-fab0a.ports.0.gids", (*own[:2], stray, own[3]))
    with pytest.raises(Refused, match=r"roce-fab0a \(rail cable2\) needs 5, not 2"):
        _planned(settings, "cyd", facts)


def test_no_planned_value_is_ever_empty() -> None:
    for topology in FLEETS:
        settings = _settings(topology)
        facts = healthy(settings)
        for node in facts:
            assert all(value for value in _planned(settings, node, facts).values())


def test_without_rdma_devices_nothing_about_hcas_is_written() -> None:
    environment = launch_plan(parse(json.dumps(good())), "spark1", BOOT).environment
    assert not {"NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_NET"} & set(environment)


def test_a_users_list_narrows_the_hcas_and_may_not_select_none() -> None:
    def with_list(value: str) -> dict[str, str]:
        settings = _settings("triangle", lambda d: d["engine"].update(environment={"NCCL_IB_HCA": value}))
        return _planned(settings, "ada", healthy(settings))

    assert with_list("^=roce-fab0b,roce-fab1b")["NCCL_IB_HCA"] == "=roce-fab0a:1,roce-fab1a:1"
    assert with_list("roce-fab0")["NCCL_IB_HCA"] == "=roce-fab0a:1,roce-fab0b:1"
    with pytest.raises(Refused, match="selects none of this node's HCAs"):
        with_list("=mlx5_0:1")


@pytest.mark.parametrize(
    "name", ["NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME", "NCCL_BUFFSIZE", "NCCL_NVLS_ENABLE", "SGLANG_NCCL_SO_PATH"]
)
def test_variables_of_the_plan_are_refused_from_users(name: str) -> None:
    with pytest.raises(Refused, match=f"engine.environment.{name} is written by the launch plan"):
        _settings("triangle", lambda d: d["engine"].update(environment={name: "3"}))


def test_a_malformed_list_is_refused_with_the_settings() -> None:
    with pytest.raises(Refused, match="= stands once, before the first name"):
        _settings("triangle", lambda d: d["engine"].update(environment={"NCCL_IB_HCA": "=a,=b"}))


def test_the_deny_list_tells_builds_of_one_version_apart() -> None:
    assert denied("2.28.9", "a7f420a1" + "0" * 32) is not None
    assert denied("2.28.9", "c0db9360" + "0" * 32) is None
    assert denied("2.28.9", None) is None
    assert denied("2.30.4", None) is not None
    assert denied("2.30.7", None) is None


def test_a_ring_that_is_no_circle_is_refused_with_the_settings() -> None:
    def straight(document: dict[str, Any]) -> None:
        for node in ("ada", "dee"):
            rails = document["fleet"]["nodes"][node]["rails"]
            document["fleet"]["nodes"][node]["rails"] = {n: r for n, r in rails.items() if not n.startswith("cable3")}

    with pytest.raises(Refused, match="ring, but ada has rails to bob, not to two nodes"):
        _settings("ring", straight)
    with pytest.raises(Refused, match="ring, which has 4 nodes or more; fleet.nodes has 3"):
        _settings("triangle", lambda d: d["fleet"].update(topology="ring"))


# -- the grammar of NCCL_IB_HCA ------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[a-zA-Z0-9_.-]{1,12}", fullmatch=True)
NUMBERS = st.none() | st.integers(1, 9999)
ENTRIES = st.builds(HcaEntry, NAMES, NUMBERS, NUMBERS, NUMBERS)
LISTS = st.builds(
    HcaList, st.lists(ENTRIES, min_size=1, max_size=6).map(tuple), exact=st.booleans(), exclude=st.booleans()
)


@given(LISTS)
def test_every_list_reads_back_as_it_is_written(hcas: HcaList) -> None:
    assert parse_hca(str(hcas)) == hcas


@given(LISTS, NAMES, st.integers(1, 3))
def test_excluding_is_the_opposite_of_listing(hcas: HcaList, device: str, port: int) -> None:
    other = HcaList(hcas.entries, hcas.exact, not hcas.exclude)
    assert hcas.selects(device, port) != other.selects(device, port)


@given(st.lists(NAMES, min_size=1, max_size=5), NAMES)
def test_an_exact_list_selects_its_names_and_no_other(names: list[str], other: str) -> None:
    hcas = exact_list(names)
    assert all(hcas.selects(name) for name in names)
    assume(other not in names)
    assert not hcas.selects(other)


@given(NAMES, st.text("abc", max_size=3))
def test_a_prefix_selects_whatever_starts_with_it(prefix: str, rest: str) -> None:
    assert parse_hca(prefix).selects(prefix + rest)


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_refused_with_words(value: str) -> None:
    try:
        hcas = parse_hca(value)
    except ValueError as error:
        assert "NCCL_IB_HCA" in str(error)
    else:
        assert hcas.entries


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "names no device"),
        ("^=", "names no device"),
        ("a,,b", "is not a device"),
        ("=^a", "stands once"),
        ("a:0", "ports count from 1"),
        ("a:", "ends in a colon"),
        ("a:x", "is not a device"),
        ("a b", "is not a device"),
        (",".join("abcdefghijklmnopqrstuvwxyzABCDEFG"), "33 entries"),
        ("a" * 64, "longer than any"),
    ],
)
def test_what_nccl_would_read_otherwise_is_refused(value: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_hca(value)


# -- GID tables ----------------------------------------------------------------------------------------------------

ADDRESS = IPv4Address("10.20.0.1")
_OTHERS = st.one_of(
    st.builds(lambda n: IPv6Address((0xFE80 << 112) | n), st.integers(1, 2**32)),
    st.builds(lambda n: mapped(IPv4Address(n)), st.integers(0xC0000201, 0xC00002FE)),
)
TABLE = st.lists(st.tuples(_OTHERS, st.sampled_from([ROCE_V1, ROCE_V2])), max_size=8)


@given(TABLE, st.randoms(use_true_random=False))
def test_the_entry_is_found_wherever_it_is_and_only_it(table: list[Any], random: Any) -> None:
    rows = [*table, (mapped(ADDRESS), ROCE_V1), (mapped(ADDRESS), ROCE_V2)]
    random.shuffle(rows)
    indices = sorted(random.sample(range(16), len(rows)))
    gids = tuple(Gid(index=i, gid=g, type=t, netdev="fab0a") for i, (g, t) in zip(indices, rows, strict=True))
    port = RdmaPort(number=1, gid_table_length=16, gids=gids)
    found = find_gid(port, ADDRESS, "fab0a")
    assert found is not None and (found.ipv4, found.type) == (ADDRESS, ROCE_V2)
    assert find_gid(port, ADDRESS, "fab0b") is None
    assert find_gid(port, IPv4Address("10.20.0.2"), "fab0a") is None


def test_a_duplicate_is_taken_once_and_always_the_same() -> None:
    gids = tuple(Gid(index=i, gid=mapped(ADDRESS), type=ROCE_V2, netdev="fab0a") for i in (9, 3, 6))
    found = find_gid(RdmaPort(number=1, gids=gids), ADDRESS, "fab0a")
    assert found is not None and found.index == 3


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        # The usual table: link-local twice, then the address as v1 and v2.
        ([("fe80::1", ROCE_V1), ("fe80::1", ROCE_V2), ("::ffff:10.20.0.1", ROCE_V1), ("::ffff:10.20.0.1", ROCE_V2)], 3),
        # Soft RoCE has v2 only.
        ([("fe80::1", ROCE_V2), ("::ffff:10.20.0.1", ROCE_V2)], 1),
        # The first IPv4 entry is v2, and a later v1 does not replace it.
        ([("fe80::1", ROCE_V2), ("::ffff:10.20.0.1", ROCE_V2), ("::ffff:10.20.0.1", ROCE_V1)], 1),
        # An address outside the range is passed over.
        ([("fe80::1", ROCE_V2), ("::ffff:192.0.2.1", ROCE_V2), ("::ffff:10.20.0.1", ROCE_V2)], 2),
        # Nothing fits: index 0, the link-local one, which is what makes an unchecked -1 dangerous.
        ([("fe80::1", ROCE_V1), ("fe80::1", ROCE_V2)], 0),
    ],
)
def test_ncclss_own_choice_as_its_source_has_it(rows: list[tuple[str, str]], chosen: int) -> None:
    gids = tuple(Gid(index=i, gid=IPv6Address(g), type=t, netdev="x") for i, (g, t) in enumerate(rows))
    port = RdmaPort(number=1, gid_table_length=len(rows), gids=gids)
    assert nccl_chooses(port, IPv4Network("10.0.0.0/8")) == chosen


@given(st.lists(st.integers(1, 2**32 - 1).map(IPv4Address), min_size=1, max_size=6))
def test_the_covering_network_holds_all_and_half_of_it_does_not(addresses: list[IPv4Address]) -> None:
    network = covering_network(addresses)
    assert all(address in network for address in addresses)
    if network.prefixlen < 32:
        assert not any(all(a in half for a in addresses) for half in network.subnets())


def test_facts_of_one_node_are_not_used_for_another() -> None:
    settings = _settings("triangle")
    with pytest.raises(Refused, match="has no RoCE v2 GID"):
        nccl_environment(settings, "ada", healthy(settings)["bob"])
