"""Stage 2 where a reader failed: no check says that something is missing, or wrong, that nobody could look at."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.checks import Finding, Severity
from dsv41_supervisor.fabric import read as reading
from dsv41_supervisor.fabric.check import check_fabric
from dsv41_supervisor.fabric.facts import NodeFacts
from dsv41_supervisor.fabric.read import read_facts
from dsv41_supervisor.fabric.roots import Unreadable
from dsv41_supervisor.settings import Settings, parse

from tests.fixtures.fabric.fleets import FLEETS, LAN, at, healthy, mac

WHY = "the driver was asked and kept silent"
READERS = {
    "links": "read_links", "routes": "read_routes", "ways": "read_ways", "neighbours": "read_neighbours",
    "sysctls": "read_sysctls", "firewall": "read_firewall", "limits": "limits_of_unit", "nccl": "planned_library",
    "sysfs": "with_sysfs", "ethtool": "with_ethtool", "rdma": "read_rdma", "pfc": "read_pfc",
}  # fmt: skip
"""Sections of the facts, and the reader in `fabric/read.py` that each comes from."""
ONLY_SYSFS = dict.fromkeys(("phys_switch_id", "phys_port_name", "speed_mbit", "pcie", "network_file", "pfc_priorities"))


def _named(document: dict[str, Any]) -> dict[str, Any]:
    """Hardware addresses of the rails are in the fleet file."""
    for number, node in enumerate(document["fleet"]["nodes"].values(), 1):
        for rail in node["rails"].values():
            rail["mac"] = mac(number, rail["interface"])
    return document


DOCUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    **FLEETS, "triangle, named and shared": lambda: _named(FLEETS["triangle"]())
}  # fmt: skip


def _whole(settings: Settings) -> dict[str, NodeFacts]:
    """The healthy fleet; where hardware addresses are named, its neighbour entries are permanent, and the LAN of every
    node has an address in the subnet of a rail, with ARP settings that keep the two apart."""
    fleet = healthy(settings)
    for node, here in settings.fleet.nodes.items():
        (_, rail), *_ = here.rails.items()
        if rail.mac is None:
            continue
        permanent = tuple(n.model_copy(update={"state": "PERMANENT"}) for n in fleet[node].neighbours)
        shared = (*fleet[node].links[LAN].addresses, IPv4Interface((int(rail.address.network.broadcast_address), 32)))
        fleet = at(fleet, node, "neighbours", permanent)
        fleet = at(fleet, node, f"links.{LAN}.addresses", shared)
        fleet = at(fleet, node, f"sysctls.arp_ignore.{LAN}", 1)
        fleet = at(fleet, node, f"sysctls.arp_announce.{LAN}", 2)
    return fleet


async def _read(
    settings: Settings, node: str, facts: NodeFacts, broken: str | None, monkeypatch: pytest.MonkeyPatch
) -> NodeFacts:
    """What `read_facts` makes of readers that say what `facts` holds, with one of them failing."""

    def later(work: Callable[..., Any]) -> Callable[..., Any]:
        async def reader(*given: Any) -> Any:
            return work(*given)

        return reader

    def silent(*_: Any) -> Any:
        raise Unreadable(WHY)

    planned = facts.nccl.planned
    assert planned is not None
    from_netlink = {name: link.model_copy(update=ONLY_SYSFS) for name, link in facts.links.items()}
    waited_for: dict[str, Callable[..., Any]] = {
        "read_links": lambda: from_netlink, "read_routes": lambda: facts.routes, "read_ways": lambda _: facts.ways,
        "read_neighbours": lambda: facts.neighbours, "read_firewall": lambda *_: facts.firewall,
        "limits_of_unit": lambda _: facts.limits, "with_ethtool": lambda links, _: links,
        "read_pfc": lambda name: facts.links[name].pfc_priorities,
    }  # fmt: skip
    in_threads: dict[str, Callable[..., Any]] = {
        "read_sysctls": lambda *_: facts.sysctls, "with_sysfs": lambda link, _: facts.links[link.name],
        "read_ecn": lambda *_: None, "read_rdma": lambda *_: facts.rdma, "read_library": lambda _: planned,
        "planned_library": lambda *_: Path(planned.path), "mapped_libraries": lambda *_: (),
    }  # fmt: skip
    for name, work in (waited_for | in_threads).items():
        assert hasattr(reading, name)
        work = silent if broken is not None and name == READERS[broken] else work
        monkeypatch.setattr(reading, name, later(work) if name in waited_for else work)
    read = await read_facts(settings, node)
    assert read.unread == ({broken: WHY} if broken is not None else {})
    return read


async def _findings(
    settings: Settings, broken: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> set[tuple[str, str | None, str | None, Severity, str]]:
    """`broken`: the section that fails, by node."""
    fleet = {
        node: await _read(settings, node, facts, broken.get(node), monkeypatch)
        for node, facts in _whole(settings).items()
    }
    return {_key(finding) for finding in check_fabric(settings, fleet).findings}


def _key(finding: Finding) -> tuple[str, str | None, str | None, Severity, str]:
    return finding.check, finding.node, finding.rail, finding.severity, finding.what


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("section", READERS)
async def test_whatever_a_check_says_of_facts_that_were_not_read_is_why(
    section: str, document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = parse(json.dumps(DOCUMENTS[document]()))
    nodes = settings.fleet.in_rank_order
    good = await _findings(settings, {}, monkeypatch)
    assert not [one for one in good if one[3] in (Severity.REFUSAL, Severity.WARNING)]
    for silent in (nodes, nodes[1:2]):
        more = await _findings(settings, dict.fromkeys(silent, section), monkeypatch) - good
        assert not [one for one in more if WHY not in one[4]]
        assert {one[1] for one in more} <= set(silent)
        if section in ("links", "rdma"):
            # Nobody knows that the rails are there: a boot does not go on with that.
            assert {one[1] for one in more if one[3] is Severity.REFUSAL} == set(silent)
