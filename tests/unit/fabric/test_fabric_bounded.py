"""Blocking reads with a bound: a reader that hangs is named and never started twice."""

from __future__ import annotations

import asyncio
import threading

import pytest
from dsv41_supervisor.fabric.bounded import BoundedReads, Unread


async def test_a_reader_that_hangs_is_named_with_how_long_was_waited() -> None:
    gate = threading.Event()
    reads = BoundedReads()
    try:
        with pytest.raises(Unread, match=r"waited \d+\.\d s for the dead mount"):
            await reads.read("the dead mount", gate.wait, 0.1)
    finally:
        gate.set()


async def test_a_reader_that_hangs_is_not_started_again_and_serves_who_waits_for_it_later() -> None:
    gate, began = threading.Event(), []

    def work() -> str:
        began.append(1)
        gate.wait()
        return "read"

    reads = BoundedReads()
    for _ in range(3):
        with pytest.raises(Unread):
            await reads.read("it", work, 0.05)
    later = asyncio.create_task(reads.read("it", work, 30))
    await asyncio.sleep(0)
    gate.set()
    assert await later == "read"
    assert began == [1]
    assert await reads.read("it", lambda: "again", 30) == "again"


async def test_a_reader_that_fails_says_why() -> None:
    def work() -> None:
        raise FileNotFoundError(2, "No such file or directory", "/proc/x")

    with pytest.raises(Unread, match="the table cannot be read: .*No such file"):
        await BoundedReads().read("the table", work, 30)


async def test_a_bug_in_a_reader_is_not_hidden() -> None:
    def work() -> None:
        raise AssertionError("bug")

    with pytest.raises(AssertionError):
        await BoundedReads().read("it", work, 30)
