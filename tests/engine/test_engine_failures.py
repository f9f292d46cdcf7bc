"""Rows that cannot be read end their requests, with row, file and errno; the rank goes on, and nobody gets zeros.

A drive is made to fail under a running rank (`drive.py`). TP3 shows that ranks agree: one rank's drive fails, all
three drop the same step, and rank 0's answer names the rank.
"""

from __future__ import annotations

import errno
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.drive import Drive
from tests.engine.engines import Engine, running

CHUNKED = "A prompt that takes more than one prefill chunk of 64 tokens: 0123456789 abcdefghij. " * 3
SHORT = "Is anybody there?"
SETTINGS = {"engram_nvme": {"staging_tokens": 24}}
Packed = Callable[[int, str], Path]


@pytest.fixture(scope="module", params=[1, 3], ids=["tp1", "tp3"])
def fleet(
    request: pytest.FixtureRequest,
    engine_python: Path,
    pruned_checkpoint: Path,
    demo_revision: str,
    packed: Packed,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Engine, Drive]]:
    """Without a row cache, so that every lookup reads; the last rank has the drive that breaks."""
    world_size = request.param
    directory = tmp_path_factory.mktemp(f"failures-tp{world_size}")
    drive = Drive(directory / "drive")
    with running(
        engine_python, pruned_checkpoint, directory,
        world_size=world_size, rows=packed(world_size, "balanced"), revision=demo_revision,
        adapters=SETTINGS, cache_bytes=0, reader="threads", drives={world_size - 1: drive},
    ) as engine:  # fmt: skip
        yield engine, drive


def body(prompt: str, n_tokens: int, **more: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
    return {"text": prompt, "sampling_params": sampling | more.pop("sampling", {}), **more}


def assert_names_the_read(text: str, world_size: int) -> None:
    last = world_size - 1
    assert re.search(
        rf"rank {last}: reading row \d+ of \S+/engram-l\d+-r{last}of{world_size}\.bin at byte \d+ failed: "
        r"Input/output error.* \(errno 5\)",
        text,
    ), text


@pytest.mark.parametrize("prompt", [SHORT, CHUNKED], ids=["one chunk", "several chunks"])
@pytest.mark.parametrize("layer", [1, 14])
def test_a_failed_prefill_fails_its_request_only(fleet: tuple[Engine, Drive], prompt: str, layer: int) -> None:
    engine, drive = fleet
    engine.forget_prefixes()
    expected = engine.generate(f"{layer} {prompt}", 8)
    engine.forget_prefixes()
    with drive.broken(errno.EIO, f"engram-l{layer}-"):
        status, text = engine.status("/generate", body(f"{layer} {prompt}", 8))
    assert status == 500, text
    assert_names_the_read(text, engine.world_size)
    again = engine.generate(f"{layer} {prompt}", 8)
    assert again.n_cached == 0, "what the failed pass computed is in the prefix cache"
    assert (again.ids, again.logprobs) == (expected.ids, expected.logprobs)


def test_a_sampled_request_fails_like_a_greedy_one(fleet: tuple[Engine, Drive]) -> None:
    """NaN in the logits would end the sampler."""
    engine, drive = fleet
    with drive.broken(errno.EIO):
        status, text = engine.status("/generate", body("Warm: " + SHORT, 8, sampling={"temperature": 1.0}))
    assert status == 500, text
    assert_names_the_read(text, engine.world_size)
    assert len(engine.generate(SHORT, 4).ids) == 4


def test_a_failed_decode_step_ends_the_stream_with_the_reason(fleet: tuple[Engine, Drive]) -> None:
    engine, drive = fleet
    prompt = "Count: " + SHORT
    engine.forget_prefixes()
    seen: list[dict[str, Any]] = []
    with engine._open("/generate", body(prompt, 3000, stream=True)) as response:
        lines = (line for line in response if line.startswith(b"data: {"))
        seen += [json.loads(next(lines).removeprefix(b"data: ")) for _ in range(3)]
        with drive.broken(errno.EIO):
            seen += [json.loads(line.removeprefix(b"data: ")) for line in lines]
    finish = seen[-1].get("meta_info", {}).get("finish_reason") or seen[-1]
    assert_names_the_read(json.dumps(finish), engine.world_size)
    given = max((tuple(line.get("output_ids") or ()) for line in seen), key=len)
    assert 3 <= len(given) < 3000
    engine.forget_prefixes()
    assert engine.generate(prompt, len(given)).ids == given, "a token of the failed step was given out"


def test_every_rank_notes_the_same_failed_steps(fleet: tuple[Engine, Drive]) -> None:
    engine, drive = fleet
    with drive.broken(errno.EIO):
        engine.status("/generate", body("Once more: " + SHORT, 4))
    engine.generate(SHORT, 2)
    counted = engine.settled_counters()
    failed = {counters["engram_failed_steps"] for counters in counted}
    assert len(failed) == 1 and failed.pop() > 0
    assert counted[-1]["engram_failed_reads"] > 0
    assert all(counters["engram_failed_reads"] == 0 for counters in counted[:-1])
    for rank in range(engine.world_size):
        (scheduler,) = (report for report in engine.reports(rank) if report.role == "scheduler")
        state = scheduler.adapters["engram_nvme"]
        assert state.state == "engaged"
        assert_names_the_read(str(state.reason), engine.world_size)


def test_a_slow_drive_makes_the_same_answer_later(fleet: tuple[Engine, Drive]) -> None:
    engine, drive = fleet
    engine.forget_prefixes()
    expected = engine.generate("Slowly: " + SHORT, 8)
    engine.forget_prefixes()
    before, started = drive.n_reads, time.monotonic()
    with drive.slow(20_000):
        got = engine.generate("Slowly: " + SHORT, 8)
    took_s = time.monotonic() - started
    assert (got.ids, got.logprobs) == (expected.ids, expected.logprobs)
    assert drive.n_reads > before
    assert took_s >= 8 * 0.02, "a step did not wait for its rows"
