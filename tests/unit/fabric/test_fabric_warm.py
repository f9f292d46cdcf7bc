"""Neighbours are asked for before RoCE needs them: whom, on which rail, and a peer that does not answer is named."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from ipaddress import IPv4Address

import pytest
from dsv41_supervisor.demo.network import Mode, mode
from dsv41_supervisor.fabric.check import check_fabric
from dsv41_supervisor.fabric.warm import peers_on_rails, warm_neighbours
from dsv41_supervisor.settings import parse

from tests.fixtures.fabric.fleets import FLEETS, at, healthy
from tests.unit.fleets import good


def test_a_triangle_asks_each_peer_over_its_own_cables() -> None:
    settings = parse(json.dumps(FLEETS["triangle"]()))
    pairs = peers_on_rails(settings, "ada", healthy(settings)["ada"].links)
    assert pairs == {
        ("fab0a", IPv4Address("10.20.0.2")): IPv4Address("10.20.0.1"),
        ("fab0b", IPv4Address("10.21.0.2")): IPv4Address("10.21.0.1"),
        ("fab1a", IPv4Address("10.20.2.1")): IPv4Address("10.20.2.2"),
        ("fab1b", IPv4Address("10.21.2.1")): IPv4Address("10.21.2.2"),
    }


def test_behind_a_switch_everybody_is_asked_on_every_rail() -> None:
    settings = parse(json.dumps(FLEETS["switched"]()))
    assert len(peers_on_rails(settings, "ada", healthy(settings)["ada"].links)) == 6


@pytest.mark.parametrize(("path", "value"), [("carrier", False), ("up", False), ("addresses", ())])
def test_a_rail_that_cannot_ask_is_left_to_the_checks(path: str, value: object) -> None:
    settings = parse(json.dumps(FLEETS["triangle"]()))
    links = at(healthy(settings), "ada", f"links.fab0a.{path}", value)["ada"].links
    assert "fab0a" not in {interface for interface, _ in peers_on_rails(settings, "ada", links)}


async def test_a_machine_without_these_rails_waits_for_nobody() -> None:
    async with asyncio.timeout(30):
        assert await warm_neighbours(parse(json.dumps(good())), "spark1") == {}


@pytest.mark.parametrize(("path", "value"), [("carrier", False), ("up", False), ("addresses", ())])
def test_a_peer_that_cannot_answer_is_named_at_its_own_end_only(path: str, value: object) -> None:
    settings = parse(json.dumps(FLEETS["triangle"]()))
    silent = at(healthy(settings), "ada", "neighbours.0.state", "FAILED")
    assert {f.node for f in check_fabric(settings, silent).findings if f.check == "rail-neighbour"} == {"ada"}
    bobs = settings.fleet.nodes["bob"].rails.values()
    interface = next(rail.interface for rail in bobs if str(rail.address.ip) == "10.20.0.2")
    refused = check_fabric(settings, at(silent, "bob", f"links.{interface}.{path}", value)).refusals
    assert {r.check for r in refused}.isdisjoint({"rail-neighbour"})
    assert {r.node for r in refused} == {"bob"}


IN_A_NAMESPACE = textwrap.dedent("""
    import asyncio, json, subprocess
    from dsv41_supervisor.fabric.check import check_fabric
    from dsv41_supervisor.fabric.read import read_facts
    from dsv41_supervisor.fabric.warm import warm_neighbours
    from dsv41_supervisor.settings import parse
    from tests.unit.fleets import good

    def ip(*words): subprocess.run(["ip", *words], check=True)

    ip("link", "add", "rail0", "type", "veth", "peer", "name", "other")
    ip("link", "add", "rail1", "type", "veth", "peer", "name", "another")
    ip("link", "add", "eth0", "type", "veth", "peer", "name", "lan")
    for name in ("lo", "rail0", "rail1", "other", "another", "eth0", "lan"):
        if name != "lo":
            ip("link", "set", name, "mtu", "9000")
        ip("link", "set", name, "up")
    for name, address in (("rail0", "198.51.100.1/30"), ("rail1", "198.51.100.9/30"), ("eth0", "192.0.2.1/24")):
        ip("addr", "add", address, "dev", name)

    async def main():
        settings = parse(json.dumps(good()))
        states = await warm_neighbours(settings, "spark1")
        facts = await read_facts(settings, "spark1")
        findings = check_fabric(settings, {"spark1": facts}).findings
        print(json.dumps({
            "states": sorted(f"{i} {a} {s}" for (i, a), s in states.items()),
            "refused": sorted(f"{f.check}: {f.what}" for f in findings if f.refuses),
        }))

    asyncio.run(main())
""")


def test_a_peer_that_answers_nobody_is_refused_by_rail_and_address(repo_root) -> None:  # type: ignore[no-untyped-def]
    if mode().mode is not Mode.NAMESPACES:
        pytest.skip(f"no network namespaces: {mode().reason}")
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", IN_A_NAMESPACE],
        cwd=repo_root, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert len(said["states"]) == 2
    assert all(line.endswith(("FAILED", "INCOMPLETE")) for line in said["states"]), said
    refused = [line for line in said["refused"] if line.startswith("rail-neighbour")]
    assert any("rail ab (rail0) gets no answer from 198.51.100.2 (spark2)" in line for line in refused), said
    assert any("rail ca (rail1) gets no answer from 198.51.100.10 (spark3)" in line for line in refused), said
    assert {line.split(":")[0] for line in said["refused"]} == {"rail-neighbour"}, said
