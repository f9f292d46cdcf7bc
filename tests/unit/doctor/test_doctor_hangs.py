"""Every reader of the host's facts hangs once: the others are still read, and which one was waited for is said."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from dsv41_supervisor.checks import HOST, run
from dsv41_supervisor.doctor import collect, read_files, read_gateway, read_gpu, read_proc
from dsv41_supervisor.doctor.collect import Standing, fabric_within, read_host
from dsv41_supervisor.fabric.bounded import BoundedReads

from tests.unit.doctor.hosts import settings

LONG_S = 60.0
READERS = {
    "read_memory": (read_proc, "memory"),
    "read_kernel": (read_proc, "kernel"),
    "read_gpu_driver": (read_proc, "gpu_driver"),
    "read_processes": (read_proc, "processes"),
    "read_disks": (read_files, "disks"),
    "read_checkpoint": (read_files, "checkpoint"),
    "read_rows": (read_files, "rows"),
    "read_gateway": (read_gateway, "gateway"),
    "read_gpus": (read_gpu, "gpus"),
}


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("reader", READERS)
async def test_a_reader_that_never_returns_is_named_and_costs_only_its_own_facts(
    reader: str, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    module, fact = READERS[reader]
    fleet = settings(cuda=False)
    monkeypatch.setattr(collect, "has_gpu", lambda: True)
    if reader != "read_gpus":
        monkeypatch.setattr(read_gpu, "read_gpus", lambda *_: ())
    monkeypatch.setattr(module, reader, lambda *_, **__: gate.wait())
    async with asyncio.timeout(LONG_S):
        facts = await read_host(fleet, fleet.fleet.head, Standing(), BoundedReads(), 2.0)
    # What is said is what was measured: two seconds, and more on a machine under load.
    waited = re.match(r"waited (\d+\.\d) s", facts.unread[fact])
    assert waited is not None and float(waited[1]) >= 2.0, facts.unread
    told = [f.what for f in run({HOST: {facts.node: facts}}, fleet) if f.check == "host-unread"]
    assert any(what.startswith(waited[0]) for what in told)
    if fact != "memory":
        assert facts.memory is not None
    if fact != "kernel":
        assert facts.kernel is not None


async def test_facts_of_a_fabric_that_never_come_are_none() -> None:
    async def for_ever() -> Any:
        await asyncio.Event().wait()

    async with asyncio.timeout(LONG_S):
        assert await fabric_within(0.1, for_ever()) is None
