"""Every reader of the fabric's facts hangs once: the others are still read, and which one was waited for is said."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.fabric import read as reading
from dsv41_supervisor.fabric.bounded import Unread
from dsv41_supervisor.fabric.read import read_facts
from dsv41_supervisor.fabric.watch import FabricWatch, look
from dsv41_supervisor.settings import Settings, parse

from tests.fixtures.fabric.fleets import FLEETS, healthy
from tests.fixtures.fabric.trees import write_trees

LONG_S = 60.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a hanging thread waits for; opened at the end, so that no thread is left."""
    event = threading.Event()
    yield event
    event.set()


def _settings() -> Settings:
    document = FLEETS["triangle"]()
    document["supervisor"] = {"units": "process"}
    return parse(json.dumps(document))


async def _for_ever(*_: Any, **__: Any) -> None:
    await asyncio.Event().wait()


ASYNCHRONOUS = {
    "read_links": "links", "read_routes": "routes", "read_ways": "ways", "read_neighbours": "neighbours",
    "read_firewall": "firewall", "with_ethtool": "ethtool", "read_pfc": "pfc",
}  # fmt: skip
THREADED = {"read_sysctls": "sysctls", "with_sysfs": "sysfs", "read_ecn": "sysfs", "read_rdma": "rdma",
            "planned_library": "nccl"}  # fmt: skip


@pytest.mark.parametrize("reader", [*ASYNCHRONOUS, *THREADED])
async def test_a_reader_that_never_returns_costs_only_its_own_facts(
    reader: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gate: threading.Event
) -> None:
    settings = _settings()
    facts = healthy(settings)["ada"]
    roots = write_trees(tmp_path, facts)

    async def links() -> Any:
        return dict(facts.links)

    monkeypatch.setattr(reading, "read_links", links)
    assert hasattr(reading, reader)
    monkeypatch.setattr(reading, reader, _for_ever if reader in ASYNCHRONOUS else lambda *_: gate.wait())
    async with asyncio.timeout(LONG_S):
        # The others are quick, and may take longer on a machine under load: looked at is only who was waited for.
        seen = await read_facts(settings, "ada", roots, bound_s=2.0)
    what = (ASYNCHRONOUS | THREADED)[reader]
    assert seen.unread[what] == "no answer within 2 s"
    if what != "links":
        assert set(seen.links) == set(facts.links)
        assert (seen.rdma == {}) is (what == "rdma")


async def test_who_asks_for_more_time_than_a_reader_has_by_itself_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As doctor --timeout does on a machine that is slow."""

    async def slow() -> Any:
        await asyncio.sleep(0.5)
        return {}

    monkeypatch.setattr(reading, "read_links", slow)
    monkeypatch.setattr(reading, "READER_TIMEOUT_S", 0.1)
    assert "links" not in (await read_facts(_settings(), "ada", bound_s=LONG_S)).unread
    assert (await read_facts(_settings(), "ada")).unread["links"] == "no answer within 0.1 s"


async def test_a_tool_that_never_ends_is_ended_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nft"
    tool.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    async with asyncio.timeout(LONG_S):
        seen = await read_facts(_settings(), "ada", bound_s=5.0)
    assert seen.firewall is None
    assert seen.unread["firewall"] == "nft did not end within 3 s"
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


async def test_a_look_of_the_watch_ends_and_says_what_it_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    settings = _settings()
    facts = healthy(settings)["ada"]
    roots = write_trees(tmp_path, facts)

    async def links() -> Any:
        return dict(facts.links)

    monkeypatch.setattr("dsv41_supervisor.fabric.watch.read_links", links)
    watch = FabricWatch(settings, "ada", lambda: None, roots)
    watch.start(await look(settings, "ada", roots))
    monkeypatch.setattr("dsv41_supervisor.fabric.watch.LOOK_S", 0.2)
    monkeypatch.setattr("dsv41_supervisor.fabric.watch.read_rdma", lambda *_: gate.wait())
    before = threading.active_count()
    for _ in range(3):
        await watch.compare()
    assert not watch.degraded
    assert any("the rails cannot be read: waited" in r.getMessage() for r in caplog.records)
    # One thread hangs, not one a look.
    assert threading.active_count() <= before + 1
    monkeypatch.setattr("dsv41_supervisor.fabric.watch.read_links", _for_ever)
    with pytest.raises(Unread, match="for the links"):
        await look(settings, "ada", roots)


def test_a_hanging_read_does_not_hold_the_end_of_the_program() -> None:
    """As a driver in trouble would: Python joins the threads of a loop's executor, and would wait for ever."""
    document = FLEETS["triangle"]()
    document["supervisor"] = {"units": "process"}
    program = f"""
import asyncio, json, threading
from dsv41_supervisor.fabric import read
from dsv41_supervisor.settings import parse
read.read_sysctls = lambda *_: threading.Event().wait()
facts = asyncio.run(read.read_facts(parse({json.dumps(document)!r}), "ada", bound_s=0.5))
print(facts.unread["sysctls"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG_S)
    assert done.stdout.strip() == "no answer within 0.5 s", done.stderr
