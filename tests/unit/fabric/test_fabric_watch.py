"""The rails while a rank runs: what differs from the launch is told, before and after, once."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from ipaddress import IPv4Interface
from pathlib import Path

import pytest
from dsv41_supervisor.fabric.agent import NodeFabric
from dsv41_supervisor.fabric.facts import NodeFacts
from dsv41_supervisor.fabric.roots import Roots
from dsv41_supervisor.fabric.watch import Change, FabricWatch, differences, look, repaired, view
from dsv41_supervisor.fabric.words import status_lines
from dsv41_supervisor.settings import Settings, parse

from tests.fixtures.fabric.fleets import FLEETS, at, healthy
from tests.fixtures.fabric.trees import write_trees

DEADLINE_S = 30.0


def _settings(state_dir: Path | None = None) -> Settings:
    document = FLEETS["triangle"]()
    if state_dir is not None:
        document["supervisor"] = {"state_dir": str(state_dir)}
    return parse(json.dumps(document))


async def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not seen within {DEADLINE_S:g} s: {what}"
        await asyncio.sleep(0.02)


def _move_gid(roots: Roots, device: str, before: int, after: int) -> None:
    """What an interface event does to a table: the entry lands elsewhere, and its old index is a hole."""
    port = roots.sys / "class/infiniband" / device / "ports/1"
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder / str(after)).write_text((port / folder / str(before)).read_text())
    (port / "gids" / str(before)).write_text(":".join(["0000"] * 8) + "\n")


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("links.fab0a.carrier", False, "rail cable0: carrier was there, is lost"),
        ("links.fab0a.up", False, "rail cable0: state was up, is down"),
        ("links.fab0a.mtu", 1500, "rail cable0: MTU was 9000, is 1500"),
        ("links.fab0a.addresses", (), "rail cable0: addresses was 10.20.0.1/30, is none"),
        ("links.fab0a", None, "rail cable0: interface was there, is missing"),
        ("rdma.roce-fab0a.ports.0.state", "DOWN", "rail cable0: RDMA port was ACTIVE, is DOWN"),
        ("rdma.roce-fab0a", None, "rail cable0: RDMA port was ACTIVE, is missing"),
        ("links.fab0a.pcie", lambda p: p.model_copy(update={"aer_fatal": 1}),
         "rail cable0: fatal PCIe errors was 0, is 1"),
    ],
)  # fmt: skip
def test_each_thing_that_matters_is_seen_and_named(path: str, value: object, sentence: str) -> None:
    settings, fleet = _settings(), healthy(_settings())
    changed = at(fleet, "ada", path, value)["ada"]
    found = differences(view(settings, "ada", fleet["ada"]), view(settings, "ada", changed), 1.0)
    assert sentence in [str(change) for change in found]


def test_a_moved_gid_shows_both_tables() -> None:
    settings, fleet = _settings(), healthy(_settings())
    gids = "rdma.roce-fab0a.ports.0.gids"
    moved = at(fleet, "ada", gids, lambda t: (*t[:3], t[3].model_copy(update={"index": 6})))["ada"]
    (change,) = differences(view(settings, "ada", fleet["ada"]), view(settings, "ada", moved), 1.0)
    assert change.what == "GID table"
    assert "5: 10.20.0.1 RoCE v2 on fab0a" in change.before
    assert "6: 10.20.0.1 RoCE v2 on fab0a" in change.after


def test_what_no_rail_uses_does_not_matter() -> None:
    settings, fleet = _settings(), healthy(_settings())
    other = at(at(fleet, "ada", "links.lan0.mtu", 9000), "ada", "links.fab0a.counters", {"rx_bytes": 77})["ada"]
    assert differences(view(settings, "ada", fleet["ada"]), view(settings, "ada", other), 1.0) == ()


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("links.fab0a.mtu", 1500),
        ("links.fab0a.addresses", ()),
        ("links.fab0a.addresses", (IPv4Interface("10.99.0.1/24"),)),
        ("links.fab0a.carrier", False),
        ("rdma.roce-fab0a.ports.0.state", "DOWN"),
        ("rdma.roce-fab0a.ports.0.gids", ()),
    ],
)
async def test_what_was_wrong_at_launch_and_is_repaired_is_no_degradation_and_may_not_break_again(
    path: str, wrong: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings, fleet = _settings(), healthy(_settings())
    broken, whole = at(fleet, "ada", path, wrong)["ada"], fleet["ada"]
    now = broken

    async def looked(*_: object) -> NodeFacts:
        return now

    monkeypatch.setattr("dsv41_supervisor.fabric.watch.look", looked)
    watch = FabricWatch(settings, "ada", lambda: None)
    watch.start(broken)
    await watch.compare()
    assert not watch.degraded
    now = whole
    with caplog.at_level(logging.INFO, "dsv41"):
        await watch.compare()
    assert watch.to_json()["state"] == "as launched"
    assert any("as the settings want it; at launch it was" in r.getMessage() for r in caplog.records)
    now = broken
    await watch.compare()
    assert watch.degraded


def test_the_wrong_address_beside_the_right_one_is_no_degradation_when_it_was_there_at_launch() -> None:
    settings = _settings()
    for after, good in (("10.20.0.1/30, 10.99.0.1/24", True), ("10.20.0.1/30", True), ("10.98.0.1/24", False)):
        assert repaired(settings, "ada", Change("cable0", "addresses", "10.99.0.1/24", after, 1.0)) is good
    one_more = Change("cable0", "addresses", "10.20.0.1/30", "10.20.0.1/30, 10.99.0.1/24", 1.0)
    assert not repaired(settings, "ada", one_more)


async def test_a_gid_that_moves_while_serving_is_told_and_taken_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = _settings()
    roots = write_trees(tmp_path, healthy(settings)["ada"])
    n_told = 0

    def told() -> None:
        nonlocal n_told
        n_told += 1

    watch = FabricWatch(settings, "ada", told, roots)
    watch.start(await look(settings, "ada", roots))
    running = asyncio.create_task(watch.run())
    try:
        await _until(lambda: watch.looked_at_s is not None, "a first look")
        assert watch.to_json()["state"] == "as launched"
        with caplog.at_level(logging.INFO, "dsv41"):
            _move_gid(roots, "roce-fab0a", 5, 6)
            await _until(lambda: watch.degraded, "the moved GID")
            status = watch.to_json()
            assert status["state"] == "degraded"
            (change,) = status["changes"]
            assert (change["rail"], change["what"]) == ("cable0", "GID table")
            looked = watch.looked_at_s
            await _until(lambda: watch.looked_at_s != looked, "another look")
            _move_gid(roots, "roce-fab0a", 6, 5)
            await _until(lambda: not watch.degraded, "the GID back in its place")
        events = [r for r in caplog.records if getattr(r, "MESSAGE_ID", "").endswith("0030")]
        assert [r.levelname for r in events] == ["WARNING", "INFO"]
        assert n_told == 2
        watch.stop()
        _move_gid(roots, "roce-fab0a", 5, 6)
        looked = watch.looked_at_s
        await watch.compare()
        assert watch.to_json()["state"] == "not watched"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_no_event_tells_of_is_seen_by_reading_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that goes down and a fatal PCIe error, between two whole looks. The interfaces are not this machine's, so
    netlink says nothing about them."""
    settings, facts = _settings(), healthy(_settings())["ada"]
    roots = write_trees(tmp_path, facts)

    async def links() -> object:
        return facts.links

    monkeypatch.setattr("dsv41_supervisor.fabric.watch.read_links", links)
    watch = FabricWatch(settings, "ada", lambda: None, roots)
    watch.start(await look(settings, "ada", roots))
    running = asyncio.create_task(watch.run())
    try:
        await _until(lambda: watch.looked_at_s is not None, "a first look")
        (roots.sys / "class/infiniband/roce-fab0b/ports/1/state").write_text("1: DOWN\n")
        await _until(lambda: watch.degraded, "the port that is down")
        assert [str(c) for c in watch.changes] == ["rail cable0-twin: RDMA port was ACTIVE, is DOWN"]
        device = roots.sys / "class/net/fab1a/device"
        (device / "aer_dev_fatal").write_text("TOTAL_ERR_FATAL 1\n")
        await _until(lambda: len(watch.changes) == 2, "the fatal error")
        assert str(watch.changes[1]) == "rail cable2: fatal PCIe errors was 0, is 1"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_rank_that_outlives_its_supervisor_is_compared_with_its_launch(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    settings = _settings(tmp_path / "state")
    roots = write_trees(tmp_path, healthy(settings)["ada"])
    before = NodeFabric(settings, "ada", lambda: None, roots)
    before.launched("boot-1", await before.for_launch())
    _move_gid(roots, "roce-fab0a", 5, 6)
    after = NodeFabric(settings, "ada", lambda: None, roots)
    await after.taken_up("boot-1")
    await after.watch.compare()
    assert after.watch.degraded
    other_boot = NodeFabric(settings, "ada", lambda: None, roots)
    await other_boot.taken_up("boot-2")
    await other_boot.watch.compare()
    assert not other_boot.watch.degraded


async def test_a_torn_record_of_the_launch_is_started_without(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    (tmp_path / "fabric.json").write_text('{"boot": "boot-1", "view": [["only two", "values"]]}')
    fabric = NodeFabric(settings, "ada", lambda: None, Roots(sys=tmp_path / "sys"))
    await fabric.taken_up("boot-1")
    await fabric.watch.compare()
    assert not fabric.watch.degraded


async def test_a_look_is_cheap_in_facts() -> None:
    settings = _settings()
    facts = await look(settings, "ada", Roots(sys=Path("/nonexistent")))
    assert isinstance(facts, NodeFacts)
    assert facts.rdma == {} and facts.routes == ()


def test_status_tells_what_changed_what_was_overridden_and_what_is_warned_of() -> None:
    found = {"severity": "warning", "check": "rail-speed", "node": "bob", "what": "rail a runs at 100 Gb/s.",
             "do_next": "Change the cable.", "overridden": False}  # fmt: skip
    allowed = found | {"check": "limit-files", "what": "few files.", "overridden": True}
    status = {
        "nodes": {"ada": {"fabric": {"sentences": ["rail a: MTU was 9000, is 1500"]}}, "bob": {"unreachable_s": 3}},
        "findings": [found, allowed],
    }
    assert list(status_lines(status)) == [
        "fabric degraded: ada: rail a: MTU was 9000, is 1500 since launch",
        "overridden (limit-files): bob: few files.",
        "warning (rail-speed): bob: rail a runs at 100 Gb/s. Change the cable.",
    ]
