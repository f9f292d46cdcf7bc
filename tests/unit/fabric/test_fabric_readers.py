"""Readers: made-up trees of our own read back as they were meant, and what no tree should break."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
from ipaddress import IPv4Address, IPv4Interface, IPv6Address
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.fabric.check import check_fabric
from dsv41_supervisor.fabric.facts import MAX_GIDS, MAX_LINKS, UNLIMITED, Gid, Link, NodeFacts, RdmaDevice, RdmaPort
from dsv41_supervisor.fabric.firewall import Packet, judge
from dsv41_supervisor.fabric.limits import limits_of_process, unit_limits
from dsv41_supervisor.fabric.links import kept, module_name, network_file, read_links, with_ethtool, with_sysfs
from dsv41_supervisor.fabric.lossless import pfc_priorities, pfc_question, read_ecn, read_pfc
from dsv41_supervisor.fabric.nccl_library import mapped_libraries, planned_library, read_library
from dsv41_supervisor.fabric.rdma import path_mtu, read_gids, read_rdma
from dsv41_supervisor.fabric.read import packets, read_facts
from dsv41_supervisor.fabric.roots import Roots, Unreadable, tool_output
from dsv41_supervisor.fabric.routes import read_routes
from dsv41_supervisor.fabric.sysctls import read_sysctls
from dsv41_supervisor.settings import parse
from hypothesis import HealthCheck, example, given
from hypothesis import settings as tuned
from hypothesis import strategies as st

from tests.fixtures.fabric.fleets import FLEETS, healthy
from tests.fixtures.fabric.trees import write_device, write_limits, write_trees
from tests.unit.fleets import good


@pytest.mark.parametrize("topology", FLEETS)
def test_a_tree_reads_back_as_it_was_written(topology: str, tmp_path: Path) -> None:
    settings = parse(json.dumps(FLEETS[topology]()))
    facts = healthy(settings)["bob"]
    roots = write_trees(tmp_path, facts)
    mtus = {name: link.mtu for name, link in facts.links.items()}
    assert read_rdma(roots, mtus) == facts.rdma
    rails = [rail.interface for rail in settings.fleet.nodes["bob"].rails.values()]
    assert read_sysctls(roots, rails) == facts.sysctls
    for link in facts.links.values():
        if link.pcie is None:
            continue
        bare = Link(**link.model_dump(include={"name", "index", "up", "carrier", "carrier_changes", "mtu", "mac",
                                               "addresses", "autoneg", "pfc_priorities", "counters"}))  # fmt: skip
        assert with_sysfs(bare, roots) == link
    assert limits_of_process(roots, 4242, "x").memlock_bytes == UNLIMITED


def test_a_twin_that_is_no_rail_and_answers_for_itself_may_share_the_subnet(tmp_path: Path) -> None:
    document = FLEETS["triangle"]()
    settings = parse(json.dumps(document))
    facts = healthy(settings)["ada"]
    roots = write_trees(tmp_path, facts)
    links = {**facts.links, "fab9": Link(name="fab9", addresses=(IPv4Interface("10.20.0.3/30"),))}

    def refusals(arp_ignore: int, arp_announce: int) -> set[str | None]:
        conf = roots.proc / "sys/net/ipv4/conf/fab9"
        conf.mkdir(exist_ok=True)
        (conf / "arp_ignore").write_text(f"{arp_ignore}\n")
        (conf / "arp_announce").write_text(f"{arp_announce}\n")
        rails = [rail.interface for rail in settings.fleet.nodes["ada"].rails.values()]
        seen = facts.model_copy(update={"links": links, "sysctls": read_sysctls(roots, rails)})
        return {r.check for r in check_fabric(settings, {"ada": seen}).refusals}

    assert refusals(0, 0) == {"rail-subnet"}
    assert refusals(1, 2) == set()


def test_an_interface_of_another_network_namespace_is_left_alone(tmp_path: Path) -> None:
    facts = healthy(parse(json.dumps(FLEETS["triangle"]())))["bob"]
    roots = write_trees(tmp_path, facts)
    here = Link(name="fab0a", index=999)
    assert with_sysfs(here, roots).pcie is None


def test_facts_travel_as_json_and_their_bounds_are_checked_on_arrival() -> None:
    facts = healthy(parse(json.dumps(FLEETS["ring"]())))["ada"]
    wire = facts.model_dump_json()
    assert NodeFacts.model_validate_json(wire) == facts
    assert len(wire) < 32 << 10
    raw = json.loads(wire)
    raw["newer"] = {"field": 1}
    assert NodeFacts.model_validate(raw) == facts
    port = raw["rdma"]["roce-fab0a"]["ports"][0]
    port["gids"] = port["gids"][:1] * (MAX_GIDS + 1)
    with pytest.raises(ValueError, match="at most 256 items"):
        NodeFacts.model_validate(raw)
    with pytest.raises(ValueError, match="at most 64 characters"):
        NodeFacts.model_validate({"node": "a" * 65})


GIDS = st.lists(
    st.tuples(
        st.one_of(
            st.integers(1, 2**32 - 1).map(lambda n: IPv6Address((0xFFFF << 32) | n)),
            st.integers(1, 2**128 - 1).map(IPv6Address),
        ),
        st.sampled_from(["RoCE v2", "IB/RoCE v1"]),
    ),
    max_size=12,
)


@given(entries=GIDS, holes=st.sets(st.integers(0, 15), max_size=4))
@tuned(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_gid_tables_read_back_with_holes(tmp_path_factory: Any, entries: Any, holes: set[int]) -> None:
    free = [index for index in range(16) if index not in holes]
    gids = tuple(
        Gid(index=index, gid=gid, type=kind, netdev="fab0a") for index, (gid, kind) in zip(free, entries, strict=False)
    )
    device = RdmaDevice(name="roce0", netdevs=("fab0a",), pcie_address="0000:01:00.0",
                        ports=(RdmaPort(number=1, gid_table_length=16, rate_gbit=200, gids=gids),))  # fmt: skip
    root = tmp_path_factory.mktemp("tree")
    write_device(root, device)
    assert read_gids(root / "class/infiniband/roce0/ports/1") == gids


@given(junk=st.binary(max_size=60), where=st.sampled_from(["gids/3", "gid_attrs/types/3", "gid_attrs/ndevs/3", "state",
                                                           "rate", "hw_counters/x", "counters/y"]))  # fmt: skip
@example(junk=b".", where="rate")
@example(junk=b"9" * 60, where="rate")
@tuned(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_that_nobody_can_parse_break_no_reader(tmp_path_factory: Any, junk: bytes, where: str) -> None:
    facts = healthy(parse(json.dumps(FLEETS["triangle"]())))["bob"]
    root = tmp_path_factory.mktemp("tree")
    device = facts.rdma["roce-fab0a"]
    write_device(root / "sys", device)
    path = root / "sys/class/infiniband/roce-fab0a/ports/1" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(junk)
    read = read_rdma(Roots(sys=root / "sys"), {"fab0a": 9000})["roce-fab0a"]
    assert set(device.ports[0].gids) - set(read.ports[0].gids) <= {g for g in device.ports[0].gids if g.index == 3}


def test_an_index_that_answers_einval_is_a_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = healthy(parse(json.dumps(FLEETS["triangle"]())))["bob"]
    write_device(tmp_path, facts.rdma["roce-fab0a"])
    real = os.read

    def refuses(file: int, n: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{file}").endswith("/gids/5"):
            raise OSError(22, "Invalid argument")
        return real(file, n)

    monkeypatch.setattr(os, "read", refuses)
    assert [g.index for g in read_gids(tmp_path / "class/infiniband/roce-fab0a/ports/1")] == [0, 1, 4]


@pytest.mark.parametrize(("netdev", "rdma"), [(9000, 4096), (4200, 4096), (4191, 2048), (1500, 1024), (300, None)])
def test_path_mtu_is_what_fits_beside_the_headers(netdev: int, rdma: int | None) -> None:
    assert path_mtu(netdev) == rdma


def test_limits_of_a_unit_and_of_a_process(tmp_path: Path) -> None:
    shown = "LimitMEMLOCKSoft=infinity\nLimitNOFILESoft=1048576\n"
    assert unit_limits("dsv41-rank@0", shown).memlock_bytes == UNLIMITED
    with pytest.raises(Unreadable, match="systemctl does not show the limits of x"):
        unit_limits("x", "LimitMEMLOCKSoft=[not set]\n")
    roots = Roots(proc=tmp_path)
    write_limits(roots, "7", 8 << 20, 1024)
    read = limits_of_process(roots, 7, "rank process 7")
    assert (read.of, read.memlock_bytes, read.n_files) == ("rank process 7", 8 << 20, 1024)
    with pytest.raises(Unreadable, match="/proc/8/limits cannot be read"):
        limits_of_process(roots, 8, "x")
    assert limits_of_process(Roots(), "self", "me").n_files > 0


def test_the_networkd_file_of_an_interface(tmp_path: Path) -> None:
    assert network_file(tmp_path, 3) is None
    links = tmp_path / "systemd/netif/links"
    links.mkdir(parents=True)
    (links / "3").write_text("ADMIN_STATE=configured\nNETWORK_FILE=/etc/systemd/network/20-x.network\n")
    assert network_file(tmp_path, 3) == "/etc/systemd/network/20-x.network"
    assert network_file(tmp_path, 4) == ""


def _pfc_answer(*attributes: tuple[int, bytes]) -> bytes:
    """RTM_GETDCB as linux/dcbnl.h has it, with these attributes inside DCB_ATTR_IEEE behind the interface's name."""

    def packed(kind: int, value: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)

    inside = b"".join(packed(kind, value) for kind, value in attributes)
    body = struct.pack("=BBH", 0, 21, 0) + packed(1, b"fab0a\0") + packed(13 | 0x8000, inside)
    return struct.pack("=IHHII", 16 + len(body), 78, 0, 1, 0) + body


def test_pfc_as_the_kernel_answers_it() -> None:
    ets, pfc = (1, bytes(range(59))), (2, bytes([8, 0b1000]) + bytes(134))
    assert pfc_priorities(_pfc_answer(ets, pfc)) == (3,)
    assert pfc_priorities(_pfc_answer((2, bytes([8, 0]) + bytes(134)))) == ()
    assert pfc_priorities(_pfc_answer((2, bytes([8, 0b10000001]) + bytes(134)))) == (0, 7)
    with pytest.raises(Unreadable, match="its driver has no DCB"):
        pfc_priorities(struct.pack("=IHHIIi", 36, 2, 0, 1, 0, -errno.EOPNOTSUPP) + bytes(16))
    # What dcb(8) asks for an interface lo, as strace shows it, without the acknowledgement that it wants.
    assert pfc_question("lo") == bytes.fromhex("1c0000004e000100010000000000000000150000070001006c6f0000")


@given(cut=st.integers(0, 200), junk=st.binary(max_size=40))
def test_a_pfc_answer_that_is_cut_or_spoiled_is_unreadable_and_no_crash(cut: int, junk: bytes) -> None:
    whole = _pfc_answer((2, bytes([8, 0b1000]) + bytes(134)))
    for answer in (whole[:cut], whole[:20] + junk, junk):
        with contextlib.suppress(Unreadable):
            assert set(pfc_priorities(answer)) <= set(range(8))


async def test_the_kernel_is_asked_for_pfc_without_any_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unreadable, match="its driver has no DCB"):
        await read_pfc("lo")
    with pytest.raises(Unreadable, match="No such device"):
        await read_pfc("nobody0")


def test_ecn_priorities(tmp_path: Path) -> None:
    roots = Roots(sys=tmp_path)
    assert read_ecn(roots, "fab0a") is None
    for priority, on in ((0, 0), (3, 1)):
        path = tmp_path / "class/net/fab0a/ecn/roce_np/enable" / str(priority)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{on}\n")
    assert read_ecn(roots, "fab0a") == (3,)


def test_vendor_and_part_of_a_module() -> None:
    sff = bytearray(128)
    sff[0] = 0x11
    sff[20:36], sff[40:56] = b"ACME".ljust(16), b"DAC-200-1M".ljust(16)
    assert module_name(bytes(sff)) == "ACME DAC-200-1M"
    cmis = bytearray(128)
    cmis[0] = 0x1E
    cmis[1:17], cmis[20:36] = b"ACME".ljust(16), b"Q112".ljust(16)
    assert module_name(bytes(cmis)) == "ACME Q112"
    assert module_name(b"\xff" * 128) is None
    assert module_name(b"") is None


# -- libnccl -------------------------------------------------------------------------------------------------------


def _library(path: Path, version: bytes, extra: bytes = b"") -> Path:
    note = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0" + bytes(range(20))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF" + b"\0" * 60 + note + b"NCCL version %s+cuda13.2\0" % version + extra)
    return path


def test_a_rail_is_not_lost_among_the_ends_of_hundreds_of_containers() -> None:
    ends = [Link(name=f"veth{n}", index=n, kind="veth") for n in range(MAX_LINKS + 50)]
    late = Link(name="enp1s0f0np0", index=900)
    tunnel = Link(name="wg0", index=901, kind="wireguard", addresses=(IPv4Interface("192.0.2.1/24"),))
    found = kept([*ends, late, tunnel])
    assert len(found) == MAX_LINKS
    assert {"enp1s0f0np0", "wg0", "veth0"} <= found.keys()


def test_a_library_says_version_build_and_patches(tmp_path: Path) -> None:
    stock = read_library(_library(tmp_path / "stock/libnccl.so.2", b"2.30.7"))
    assert (stock.version, stock.patches, stock.build_id) == ("2.30.7", (), bytes(range(20)).hex())
    ring = read_library(
        _library(
            tmp_path / "ring/libnccl.so.2", b"2.30.7", b"NCCL_SWITCHLESS_RING_ONLY\0NCCL_IB_SUBNET_AWARE_ROUTING\0"
        )
    )
    assert ring.patches == ("subnet-aware", "switchless-ring")
    assert ring.sha256 != stock.sha256
    with pytest.raises(Unreadable, match="No such file"):
        read_library(tmp_path / "gone")
    assert read_library(_library(tmp_path / "odd/libnccl.so.2", b"two")).version is None


def test_the_planned_library_is_the_one_torch_loads(tmp_path: Path) -> None:
    own = _library(tmp_path / "lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2", b"2.30.7")
    python = str(tmp_path / "bin/python3")
    assert planned_library(python, None) == own
    assert planned_library(python, None, "/x/libjemalloc.so:/y/libnccl.so.2") == Path("/y/libnccl.so.2")
    assert planned_library(python, "/z/libnccl.so.2", "/y/libnccl.so.2") == Path("/z/libnccl.so.2")
    with pytest.raises(Unreadable, match="there is no nvidia/nccl"):
        planned_library("/nowhere/bin/python", None)


def test_mapped_libraries_come_from_the_ranks_maps(tmp_path: Path) -> None:
    line = "7f00-7f01 r-xp 00000000 08:01 42    /opt/a b/nccl/lib/libnccl.so.2"
    (tmp_path / "7").mkdir()
    (tmp_path / "7/maps").write_text(f"{line}\n{line}\n7f02-7f03 r--p 00000000 00:00 0\nrubbish\n")
    assert mapped_libraries(Roots(proc=tmp_path), [7, 8]) == (Path("/opt/a b/nccl/lib/libnccl.so.2"),)


# -- packet filter -------------------------------------------------------------------------------------------------


def _ruleset(*rules: dict[str, Any], policy: str = "drop", chains: dict[str, list[Any]] | None = None) -> Any:
    items: list[Any] = [
        {"metainfo": {"version": "1.1"}},
        {"table": {"family": "inet", "name": "fw"}},
        {"chain": {"family": "inet", "table": "fw", "name": "input", "type": "filter", "hook": "input", "prio": 0,
                   "policy": policy}},
    ]  # fmt: skip
    for name, body in (chains or {}).items():
        items.append({"chain": {"family": "inet", "table": "fw", "name": name}})
        items += [{"rule": {"family": "inet", "table": "fw", "chain": name, "expr": expr}} for expr in body]
    items += [{"rule": {"family": "inet", "table": "fw", "chain": "input", "expr": expr}} for expr in rules]
    return {"nftables": items}


def _iif(*names: str) -> dict[str, Any]:
    right: Any = names[0] if len(names) == 1 else {"set": list(names)}
    return {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": right}}


def _dport(right: Any) -> dict[str, Any]:
    return {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": right}}


ACCEPT = {"accept": None}
DROP = {"drop": None}
STATE = {
    "vmap": {
        "key": {"ct": {"key": "state"}},
        "data": {"set": [["invalid", DROP], ["established", ACCEPT], ["new", {"jump": {"target": "allow"}}]]},
    }
}
SADDR = {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}},
                   "right": {"set": [{"prefix": {"addr": "192.0.2.0", "len": 24}}]}}}  # fmt: skip
STRANGE = {"match": {"op": "==", "left": {"fib": {"result": "oif"}}, "right": True}}


@pytest.mark.parametrize(
    ("shown", "verdict"),
    [
        ({"nftables": []}, "accept"),
        (_ruleset(), "drop"),
        (_ruleset(policy="accept"), "accept"),
        (_ruleset([_iif("rail0", "lo"), ACCEPT]), "accept"),
        (_ruleset([_iif("rail1"), ACCEPT]), "drop"),
        (_ruleset([_iif("rail*"), {"counter": {}}, ACCEPT]), "accept"),
        (_ruleset([_dport(22), ACCEPT]), "drop"),
        (_ruleset([_dport({"range": [32768, 65535]}), ACCEPT]), "accept"),
        (_ruleset([SADDR, _dport({"set": [22, {"range": [30000, 50000]}]}), ACCEPT]), "accept"),
        (_ruleset([STRANGE, ACCEPT]), "unknown"),
        (_ruleset([STRANGE, DROP], [_iif("rail0"), ACCEPT]), "unknown"),
        (_ruleset([STRANGE, DROP]), "drop"),
        (_ruleset([STATE], chains={"allow": [[_iif("rail0"), ACCEPT]]}), "accept"),
        (_ruleset([STATE], chains={"allow": [[_iif("rail1"), ACCEPT]]}), "drop"),
        (_ruleset([{"jump": {"target": "a"}}], chains={"a": [[{"jump": {"target": "a"}}]]}), "unknown"),
        (_ruleset([{"jump": {"target": "a"}}, ACCEPT], chains={"a": [[{"return": None}], [DROP]]}), "accept"),
        (_ruleset([{"goto": {"target": "a"}}, ACCEPT], chains={"a": []}), "drop"),
        (_ruleset([{"match": {"op": "!=", "left": {"meta": {"key": "iifname"}}, "right": "rail0"}}, ACCEPT]), "drop"),
        (_ruleset([{"xt": None}, ACCEPT]), "unknown"),
    ],
)
def test_verdicts_of_a_packet_filter(shown: Any, verdict: str) -> None:
    packet = Packet("rail0", IPv4Address("192.0.2.7"))
    assert judge(shown, [packet], []).incoming == {"rail0": verdict}


def test_dockers_forward_drop_is_seen() -> None:
    shown = {"nftables": [
        {"table": {"family": "ip", "name": "filter"}},
        {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "type": "filter", "hook": "forward", "prio": 0,
                   "policy": "drop"}},
        {"rule": {"family": "ip", "table": "filter", "chain": "FORWARD", "expr": [
            {"match": {"op": "==", "left": {"meta": {"key": "oifname"}}, "right": "docker0"}}, {"accept": None}]}},
    ]}  # fmt: skip
    seen = judge(shown, [Packet("rail0")], [Packet("rail0", oif="rail1"), Packet("rail0", oif="docker0")])
    assert seen.forwarded == {"rail0>rail1": "drop", "rail0>docker0": "accept"}
    assert seen.incoming == {"rail0": "accept"}
    assert seen.tables == ("ip filter",)


@pytest.mark.parametrize(("rule", "verdict"), [([{"accept": None}], "accept"), ([{"return": None}], "drop")])
def test_a_rule_of_docker_user_decides_before_dockers_own(rule: list[Any], verdict: str) -> None:
    """As `nft -j` prints the chains that dockerd makes with iptables-nft: an xt match is not told."""

    def chain(name: str, **more: Any) -> dict[str, Any]:
        return {"chain": {"family": "ip", "table": "filter", "name": name, **more}}

    def ruled(name: str, *expr: Any) -> dict[str, Any]:
        return {"rule": {"family": "ip", "table": "filter", "chain": name, "expr": list(expr)}}

    counter = {"counter": {"packets": 0, "bytes": 0}}
    between = [{"match": {"op": "==", "left": {"meta": {"key": key}}, "right": name}}
               for key, name in (("iifname", "rail0"), ("oifname", "rail1"))]  # fmt: skip
    bridge = {"match": {"op": "==", "left": {"meta": {"key": "oifname"}}, "right": "docker0"}}
    shown = {"nftables": [
        {"table": {"family": "ip", "name": "filter"}}, chain("DOCKER-USER"), chain("DOCKER-FORWARD"),
        chain("FORWARD", type="filter", hook="forward", prio=0, policy="drop"),
        ruled("FORWARD", counter, {"jump": {"target": "DOCKER-USER"}}),
        ruled("FORWARD", counter, {"jump": {"target": "DOCKER-FORWARD"}}),
        ruled("DOCKER-USER", *between, counter, *rule),
        ruled("DOCKER-FORWARD", bridge, {"xt": {"type": "match", "name": "conntrack"}}, counter, {"accept": None}),
    ]}  # fmt: skip
    assert judge(shown, [], [Packet("rail0", oif="rail1")]).forwarded == {"rail0>rail1": verdict}


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["nftables", "chain", "rule", "expr", "match", "left", "right", "meta", "set",
                                         "family", "table", "name", "vmap", "key", "data"]), inner, max_size=4),
                    max_leaves=15))  # fmt: skip
@tuned(max_examples=150, deadline=None)
def test_a_strange_ruleset_is_unreadable_or_judged_and_nothing_else(shown: Any) -> None:
    try:
        judge({"nftables": [shown]}, [Packet("rail0")], [])
    except (Unreadable, KeyError, TypeError, AttributeError, ValueError, IndexError):
        # read_facts turns any of them into "could not be read, because".
        return


def test_packets_are_those_that_peers_send() -> None:
    settings = parse(json.dumps(FLEETS["ring"]()))
    incoming, forwarded = packets(settings, "bob")
    assert {p.iif for p in incoming} == {"lan0", "fab0a", "fab0b", "fab1a", "fab1b"}
    assert {(p.iif, p.oif) for p in forwarded} == {
        (a, b) for a in ("fab0a", "fab0b", "fab1a", "fab1b") for b in ("fab0a", "fab0b", "fab1a", "fab1b")
        if a[3] != b[3]
    }  # fmt: skip


# -- this machine --------------------------------------------------------------------------------------------------


async def test_this_machines_own_facts_can_be_read() -> None:
    links = await read_links()
    assert "127.0.0.1" in {str(a.ip) for a in links["lo"].addresses}
    assert links["lo"].counters["rx_bytes"] >= 0
    assert all(route.interface for route in await read_routes())
    assert (await with_ethtool(links, ["lo"]))["lo"].name == "lo"


async def test_reading_everything_never_raises_and_says_what_is_missing(tmp_path: Path) -> None:
    settings = parse(json.dumps(good()))
    facts = await read_facts(settings, "spark1", Roots(sys=tmp_path, proc=tmp_path, run=tmp_path))
    assert facts.rdma == {}
    assert facts.limits is not None or facts.unread["limits"].startswith("systemctl ")
    assert facts.firewall is not None or "nft" in facts.unread["firewall"]
    assert facts.unread["nccl"] == "engine.device is cpu: NCCL is not used"
    assert NodeFacts.model_validate_json(facts.model_dump_json()) == facts


async def test_a_tool_that_is_missing_or_fails_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="no-such-tool is not installed"):
        await tool_output("no-such-tool")
    with pytest.raises(Unreadable, match="sh failed: oh no"):
        await tool_output("sh", "-c", "echo oh no >&2; exit 3")
