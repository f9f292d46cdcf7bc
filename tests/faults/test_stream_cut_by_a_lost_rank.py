"""Fault: `kill -9` of rank 1's scheduler in the middle of a stream.

What the user sees: tokens so far, then an SSE error event that says that the engine was lost; never silence and never
`[DONE]`. A new request gets 503, later an answer.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from dsv41_supervisor.errors import Dsv41Error

from tests.harness.fleet import kill, running_fleet


async def test_a_stream_that_loses_its_engine_ends_with_an_error_event(tmp_path: Path, demo_checkpoint: Path) -> None:
    slow = {"all": {"tokens_per_s": 2}}
    async with running_fleet(tmp_path, demo_checkpoint, behaviour=slow) as fleet:
        assert (await fleet.up())["state"] == "serving"
        got: list[str] = []
        first = asyncio.Event()

        def show(text: str) -> None:
            got.append(text)
            first.set()

        stream = asyncio.ensure_future(fleet.chat(max_tokens=600, show=show))
        await asyncio.wait_for(first.wait(), 60)
        kill(fleet.engine_process(1, "scheduler"))
        with pytest.raises(Dsv41Error, match="the stream ended with an error") as caught:
            # It would have gone on for minutes. How soon it ends is what tests/engine/test_engine_fleet.py measures.
            await asyncio.wait_for(stream, 60)
        assert "lost" in str(caught.value)
        assert got
        await fleet.until(lambda s: s["state"] == "serving", "the fleet came back", 60)
        assert (await fleet.chat(max_tokens=4)).completion_tokens == 4
