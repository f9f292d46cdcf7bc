"""Rows from packed files are SGLang's own tables, bit for bit: same tokens, same log-probabilities."""

from __future__ import annotations

from pathlib import Path

import pytest
from dsv41_rowstore import read_header, rows_path

from tests.engine.conftest import N_TOKENS, PROMPTS, Recorded, battery
from tests.engine.engines import LAYERS, Answer, Engine


def assert_equal(got: list[Answer], expected: list[Answer]) -> None:
    assert len(got) == len(expected) == 2 * len(PROMPTS)
    for i, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert len(one.ids) == N_TOKENS
        assert one.ids == other.ids, f"answer {i}: {PROMPTS[i % len(PROMPTS)]!r}"
        assert one.logprobs == other.logprobs, f"answer {i}: {PROMPTS[i % len(PROMPTS)]!r}"


def test_tp3_answers_are_those_of_the_stock_tables(stock_tp3: Recorded, nvme_tp3: Recorded) -> None:
    assert_equal(nvme_tp3.answers, stock_tp3.answers)


def test_the_answers_differ_from_each_other(stock_tp3: Recorded) -> None:
    """Else the equality above would say little."""
    assert len({answer.ids for answer in stock_tp3.answers}) >= len(PROMPTS)
    assert any(answer.n_cached > 0 for answer in stock_tp3.answers), "no answer came from a cached prefix"


def test_without_a_plan_the_engine_is_stock(stock_tp3: Recorded) -> None:
    assert stock_tp3.reports == [[], [], []]
    assert not any("dsv41 adapters armed" in log for log in stock_tp3.logs)


def test_every_scheduler_of_every_rank_is_engaged(nvme_tp3: Recorded) -> None:
    for rank, reports in enumerate(nvme_tp3.reports):
        states = {report.role: report.adapters["engram_nvme"] for report in reports}
        assert set(states) == {"launcher", "scheduler", "detokenizer"} or rank > 0
        assert {report.rank for report in reports} == {rank}
        assert states["scheduler"].state == "engaged"
        assert "sglang.srt.layers.engram:EngramEmbedding" in states["scheduler"].targets
        assert states["launcher"].state == "off"
        assert states["launcher"].reason == "not used in a launcher process"


def test_every_row_is_read_by_exactly_one_rank(nvme_tp3: Recorded) -> None:
    asked = {counters["engram_lookups"] for counters in nvme_tp3.counters}
    assert len(asked) == 1, "the ranks did not look up the same ids"
    assert sum(counters["engram_rows_read"] for counters in nvme_tp3.counters) == asked.pop() > 0
    assert all(counters["engram_device_reads"] > 0 for counters in nvme_tp3.counters)


def test_no_warning_is_left_behind(nvme_tp3: Recorded) -> None:
    for log in nvme_tp3.logs:
        assert "not reading model-00003-of-00004.safetensors, model-00004-of-00004.safetensors" in log
        for words in (
            "not initialized from checkpoints",
            "not found in params_dict",
            "Failed to apply hooks",
        ):
            assert words not in log
        assert "stand-in without kernels" not in log, "a function of the sgl_kernel shim was called"


def test_tp1_answers_are_those_of_the_stock_tables(nvme_tp1: Engine, stock_tp1_answers: list[Answer]) -> None:
    assert_equal(battery(nvme_tp1), stock_tp1_answers)


def test_nothing_asked_for_is_armed_nowhere(stock_tp1: Engine, stock_tp1_answers: list[Answer]) -> None:
    reports = stock_tp1.reports()
    assert {report.role for report in reports} == {"launcher", "scheduler", "detokenizer"}
    assert all(report.adapters == {} for report in reports)
    assert stock_tp1.counters() == {}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_corrupted_row_changes_the_answer(
    stock_tp1: Engine, nvme_tp1: Engine, stock_tp1_answers: list[Answer], rows_tp1: Path, layer: int
) -> None:
    """The equality tests can fail: one byte of every row, in one layer's file, under a running rank."""
    fresh = f"Prompt number {layer} that nobody asked before: letters, zebra, quartz."  # not in the row cache
    expected = stock_tp1.generate(fresh, N_TOKENS)
    path = rows_path(rows_tp1, layer, 0, 1)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    header = read_header(path)
    first = header_bytes(whole)
    for row in range(header.n_rows):
        damaged[first + row * header.row_bytes] ^= 0x80  # the sign of a row's first weight
    try:
        rewrite(path, damaged)
        got = nvme_tp1.generate(fresh, N_TOKENS)
    finally:
        rewrite(path, whole)
    assert got.logprobs != expected.logprobs


def header_bytes(content: bytes) -> int:
    """Rows start behind the header page. Source: rowstore/FORMAT.md."""
    assert content.startswith(b"DSV41ROW")
    return 4096


def rewrite(path: Path, content: bytes | bytearray) -> None:
    """In place: the rank has the file open."""
    with open(path, "r+b") as file:
        file.write(content)
