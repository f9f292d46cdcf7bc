"""`engram_nvme` in real servers on a real GPU: eager, captured and DSPARK, against the checkpoint's own tables.

Tensors decide: a witness in the engine compares every looked-up row, bit for bit. Tokens are only a smoke test, because
two stock servers do not always agree on them either.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engines import write_plan
from tests.gpu.servers import LAYERS, Server, prompt, request, resident_bytes, write_row, zero_row

WITH_DRIVE = ("eager", "graph", "dspark", "prefill-graph")
WITNESSED = (*WITH_DRIVE, "uring")
ServerOf = Callable[[str], Server]
Figures = dict[str, Any]


def at_once(*jobs: Callable[[], Any]) -> list[Any]:
    """Run together; gives their results."""
    results: list[Any] = [None] * len(jobs)

    def run(index: int) -> None:
        results[index] = jobs[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=200)
    return results


@pytest.mark.parametrize("name", WITNESSED)
def test_every_row_is_bit_equal_to_the_stock_table(server_of: ServerOf, figures: Figures, name: str) -> None:
    server = server_of(name)
    server.ask(prompt(3000), 16)  # two prefill passes, each in several chunks of staged rows
    server.ask(prompt(300, 1), 310)
    at_once(*(lambda salt=salt: server.ask(prompt(41 + salt, salt), 40) for salt in range(2, 6)))
    seen = {mode: server.n_seen(mode) for mode in ("prefill", "decode", "verify")}
    figures.setdefault("rows_compared", {})[name] = seen
    assert seen["prefill"][0] >= 10_000
    assert seen["verify" if name == "dspark" else "decode"][0] >= 10_000
    assert [differ for _, differ in seen.values()] == [0, 0, 0]


@pytest.mark.parametrize("name", WITH_DRIVE)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_zeroed_row_changes_what_is_looked_up(server_of: ServerOf, figures: Figures, name: str, layer: int) -> None:
    """Else the equality above would say nothing."""
    server = server_of(name)
    ids = prompt(40, 10 + layer)
    server.ask(ids, 4)
    row = server.seen()["first"][LAYERS.index(layer)][23]
    before = server.n_different()
    whole = zero_row(server.rows, layer, row)
    try:
        server.forget_prefixes()
        server.ask(ids, 4)
        changed = server.n_different() - before
    finally:
        write_row(server.rows, layer, row, whole)
    server.forget_prefixes()
    server.ask(ids, 4)
    figures.setdefault("rows_changed_by_a_zeroed_row", {})[f"{name} layer {layer}"] = changed
    assert changed > 0
    assert server.n_different() == before + changed, "the row is back, and still something differs"


@pytest.mark.parametrize("name", WITH_DRIVE)
def test_20_ms_reads_make_slow_steps_with_the_right_rows(server_of: ServerOf, figures: Figures, name: str) -> None:
    server = server_of(name)
    ids, n_tokens = prompt(40, 20), 16
    before = server.n_different()
    took = {}
    for latency_us in (0, 20_000):
        server.forget_prefixes()
        started = time.monotonic()
        with server.drive.slow(latency_us):
            answer = server.ask(ids, n_tokens)
        took[latency_us] = time.monotonic() - started
        assert len(answer["output_ids"]) == n_tokens
    figures.setdefault("step_ms_at_0_and_20_ms", {})[name] = [round(t / n_tokens * 1e3, 1) for t in took.values()]
    steps = n_tokens / 6 if name == "dspark" else n_tokens
    assert took[20_000] - took[0] >= steps * 0.020
    assert server.n_different() == before


def assert_names_the_read(text: str, layer: int | None = None, world_size: int = 1) -> None:
    which, last = layer or r"\d+", world_size - 1
    assert re.search(
        rf"rank {last}: reading row \d+ of \S+/engram-l{which}-r{last}of{world_size}\.bin at byte \d+ failed: "
        r"Input/output error.*\(errno 5\)",
        text,
    ), text


@pytest.mark.parametrize("name", WITH_DRIVE)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("n_tokens", [40, 3000], ids=["short", "two prefill passes"])
def test_a_failed_prefill_fails_its_request_only(
    server_of: ServerOf, figures: Figures, name: str, layer: int, n_tokens: int
) -> None:
    server = server_of(name)
    ids = prompt(n_tokens, 30 + layer)
    with server.drive.broken(errno.EIO, f"engram-l{layer}-"):
        status, text = server.status("/generate", request(ids, 4))
    assert status == 500, text
    assert_names_the_read(text, layer)
    figures.setdefault("failed_prefill", {})[name] = json.loads(text)
    before, cached = server.n_different(), server.ask(ids, 4)["meta_info"]["cached_tokens"]
    assert cached == 0, "what the failed pass computed is in the prefix cache"
    assert server.n_different() == before


@pytest.mark.parametrize("name", WITH_DRIVE)
def test_a_failed_decode_step_ends_the_stream_with_the_reason(server_of: ServerOf, figures: Figures, name: str) -> None:
    server = server_of(name)
    ids = prompt(50, 50)
    seen: list[dict[str, Any]] = []
    with server._open("/generate", request(ids, 2000, stream=True)) as response:
        lines = (json.loads(line.removeprefix(b"data: ")) for line in response if line.startswith(b"data: {"))
        seen += [next(lines) for _ in range(4)]
        with server.drive.broken(errno.EIO):
            seen += list(lines)
    last = seen[-1].get("meta_info", {}).get("finish_reason") or seen[-1]
    assert_names_the_read(json.dumps(last))
    assert sum(len(answer.get("output_ids") or ()) > 0 for answer in seen) < 2000
    figures.setdefault("failed_decode", {})[name] = last
    before = server.n_different()
    assert len(server.ask(ids, 8)["output_ids"]) == 8
    assert server.n_different() == before


def test_a_sampled_request_fails_like_a_greedy_one(server_of: ServerOf) -> None:
    """NaN in the logits would end the sampler's kernel, and with it the server."""
    server = server_of("graph")
    with server.drive.broken(errno.EIO):
        status, text = server.status("/generate", request(prompt(40, 60), 8, sampling={"temperature": 1.0}))
    assert status == 500
    assert_names_the_read(text)
    assert len(server.ask(prompt(40, 60), 8, sampling={"temperature": 1.0})["output_ids"]) == 8


@pytest.mark.parametrize("steps", ["captured", "eager"])
def test_reads_are_hidden_behind_the_layers_before(server_of: ServerOf, figures: Figures, steps: str) -> None:
    """How long the model's stream stands still for rows, with lookups ahead and without: medians of three turns.

    Captured steps of the tiny model leave little to hide behind (2.6 ms for 8 layers); eager ones take as long as a
    real model's.
    """
    prefix = "" if steps == "captured" else "eager-"
    servers = {name: server_of(prefix + name) for name in ("ahead", "late")}
    n_tokens = 96
    table: dict[str, Any] = {}
    for latency_us in (0, 100, 1000, 5000):
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
        for _ in range(3):
            for name, server in servers.items():  # interleaved
                turns[name].append(measure(server, n_tokens, latency_us))
        table[f"{latency_us / 1000:g} ms"] = {
            name: {figure: sorted(turn[figure] for turn in turns[name])[1] for figure in turns[name][0]}
            for name in servers
        }
    figures[f"reads_under_{steps}_steps"] = table
    slowest = table["5 ms"]
    assert slowest["ahead"]["exposed_ms"] < slowest["late"]["exposed_ms"]


def measure(server: Server, n_tokens: int, latency_us: int | None = None) -> dict[str, float]:
    server.ask(prompt(40, 70), 4)
    before = server.counters()
    with contextlib.nullcontext() if latency_us is None else server.drive.slow(latency_us):
        answer = server.ask(prompt(40, 70), n_tokens)
    server.ask(prompt(40, 70), 2)  # the counters are written with the next step
    waited = server.counters().get("engram_stream_wait_ns", 0) - before.get("engram_stream_wait_ns", 0)
    return {
        "exposed_ms": round(waited / n_tokens / 1e6, 3),
        "step_ms": round(answer["meta_info"]["e2e_latency"] / n_tokens * 1e3, 3),
    }


def test_a_step_on_this_machines_own_drive(server_of: ServerOf, figures: Figures) -> None:
    """A figure, not a bound: the stock server's step beside ours with io_uring, a cache of 1 MB and no witness."""
    servers = {name: server_of(name) for name in ("stock", "real")}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for _ in range(5):
        for name, server in servers.items():
            turns[name].append(measure(server, 96))
    figures["own_drive"] = {
        name: {figure: sorted(turn[figure] for turn in turns[name])[2] for figure in turns[name][0]} for name in servers
    }
    assert figures["own_drive"]["stock"]["exposed_ms"] == 0


def test_two_ranks_look_up_the_stock_rows_and_drop_the_same_step(server_of: ServerOf, figures: Figures) -> None:
    """Two GPUs, NCCL between them, captured decode: the sum over ranks, and a read that fails on the second."""
    server = server_of("tp2")
    server.ask(prompt(3000), 16)
    server.ask(prompt(300, 1), 310)
    seen = {mode: server.n_seen(mode) for mode in ("prefill", "decode")}
    figures.setdefault("rows_compared", {})["tp2"] = seen
    assert seen["prefill"][0] >= 10_000 and seen["decode"][0] >= 10_000
    assert [differ for _, differ in seen.values()] == [0, 0]
    for n_tokens in (40, 3000):
        ids = prompt(n_tokens, 40)
        with server.drive.broken(errno.EIO):
            status, text = server.status("/generate", request(ids, 4))
        assert status == 500, text
        assert_names_the_read(text, world_size=2)
        before = server.n_different()
        assert server.ask(ids, 4)["meta_info"]["cached_tokens"] == 0
        assert server.n_different() == before
    with server._open("/generate", request(prompt(50, 50), 2000, stream=True)) as response:
        lines = (json.loads(line.removeprefix(b"data: ")) for line in response if line.startswith(b"data: {"))
        seen_lines = [next(lines) for _ in range(4)]
        with server.drive.broken(errno.EIO):
            seen_lines += list(lines)
    last = seen_lines[-1].get("meta_info", {}).get("finish_reason") or seen_lines[-1]
    assert_names_the_read(json.dumps(last), world_size=2)
    figures["failed_decode_tp2"] = last
    assert len(server.ask(prompt(50, 50), 8)["output_ids"]) == 8
    counted = [server.counters(rank) for rank in range(2)]
    assert counted[0]["engram_failed_steps"] == counted[1]["engram_failed_steps"] >= 3
    assert counted[0]["engram_failed_reads"] == 0 < counted[1]["engram_failed_reads"]


@pytest.mark.parametrize("name", [*WITNESSED, "ahead", "late"])
def test_every_process_reports_what_is_armed_in_it(server_of: ServerOf, figures: Figures, name: str) -> None:
    states = {report.role.value: report.adapters["engram_nvme"] for report in server_of(name).reports()}
    assert set(states) == {"launcher", "scheduler", "detokenizer"}
    assert states["scheduler"].state == "engaged"
    assert len(states["scheduler"].targets) == 7
    assert states["launcher"].state == states["detokenizer"].state == "off"
    figures.setdefault("armed", {})[name] = {role: state.state.value for role, state in states.items()}


def test_no_byte_of_the_tables_is_read(server_of: ServerOf, checkpoints: Any, figures: Figures) -> None:
    """Five servers booted although the tables' files are empty; of a whole copy, no page was brought in."""
    server = server_of("uring")
    for name in (*WITH_DRIVE, "ahead", "late"):
        server_of(name)
    tables = checkpoints.tables(checkpoints.whole)
    figures["tables_bytes"] = sum(path.stat().st_size for path in tables)
    figures["tables_resident_bytes"] = sum(map(resident_bytes, tables))
    assert "not reading tables-l1.safetensors, tables-l4.safetensors" in server.ranks[0].log
    assert figures["tables_resident_bytes"] <= figures["resident_before_boot"]
    assert "not initialized" not in server.ranks[0].log and "not found in params_dict" not in server.ranks[0].log


def test_a_changed_target_is_refused_by_every_process(tmp_path: Path, repo_root: Path, figures: Figures) -> None:
    import importlib.util

    package = Path(importlib.util.find_spec("sglang").submodule_search_locations[0])  # type: ignore[union-attr,index]
    copy = tmp_path / "sabotaged" / "sglang"
    copy.parent.mkdir()
    subprocess.run(["cp", "-rs", str(package), str(copy)], check=True)
    changed = copy / "srt" / "layers" / "engram.py"
    source = changed.read_text()
    assert source.count("owned = (local >= 0) &") == 1
    changed.unlink()
    changed.write_text(source.replace("owned = (local >= 0) &", "owned = (local >= 1) &"))
    rows = tmp_path / "rows"
    rows.mkdir()
    plan = write_plan(tmp_path / "rank-0", rows=rows, revision="tiny")
    entry = repo_root / "tests" / "engine" / "inside" / "entry.py"
    environment = os.environ | {
        "DSV41_RANK_PLAN": str(plan),
        "SGLANG_PLUGINS": "dsv41",
        "PYTHONPATH": f"{copy.parent}:{os.environ['PYTHONPATH']}",
    }
    roles = ("launcher", "scheduler", "detokenizer")
    started = [subprocess.Popen([sys.executable, entry, role], env=environment) for role in roles]
    statuses = {role: process.wait(timeout=200) for role, process in zip(roles, started, strict=True)}
    figures["sabotaged_target"] = statuses
    assert statuses == dict.fromkeys(roles, 78)


def test_the_same_prompt_gives_the_same_tokens_as_the_stock_server(server_of: ServerOf, figures: Figures) -> None:
    """A smoke test, and noted as such: stock against stock is beside it."""
    stock, ours = server_of("stock"), server_of("uring")
    answers = {}
    for name, server in (("stock", stock), ("stock again", stock), ("engram_nvme", ours)):
        server.forget_prefixes()
        answers[name] = server.ask(prompt(40, 80), 32)["output_ids"]
    figures["same_tokens"] = {
        "stock and stock again": answers["stock"] == answers["stock again"],
        "stock and engram_nvme": answers["stock"] == answers["engram_nvme"],
    }
    assert len(answers["engram_nvme"]) == 32
