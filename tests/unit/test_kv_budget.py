"""The engine's line about its memory, parsed by key; a pin that was clamped too far is a refusal."""

from __future__ import annotations

import pytest
from dsv41_supervisor.rank.kv_budget import MARK, kv_budget, parse_line, unequal
from dsv41_supervisor.rank.phases import Progress
from hypothesis import given
from hypothesis import strategies as st

# Field names as sglang 0.5.23 prints them; the figures are made up.
LINE = (
    f"[2026-11-30 02:00:00 TP1] {MARK} unified=True, unified_fp8=False, dspark_draft_bf16=False, "
    "bytes_per_full_token=1670.75, available_bytes=20.50 GB, c128_state_fixed=0.01 GB, swa_fixed=0.67 GB, "
    "full_token=12874240"
)


def test_every_field_is_taken_by_its_key() -> None:
    fields = parse_line(LINE)
    assert fields["full_token"] == 12874240
    assert fields["bytes_per_full_token"] == 1670.75
    assert fields["available_bytes"] == 20.5 * 2**30
    assert fields["unified"] == "True"
    assert fields["c128_state_fixed"] == pytest.approx(0.01 * 2**30)


def test_a_shorter_line_of_an_older_engine_still_says_what_it_says() -> None:
    fields = parse_line(f"{MARK} bytes_per_full_token=1670.75, available_bytes=17.10 GB")
    assert set(fields) == {"bytes_per_full_token", "available_bytes"}
    assert kv_budget(8_000_000, f"{MARK} available_bytes=17.10 GB", None).granted is None


@given(st.text(max_size=200))
def test_no_line_breaks_it(text: str) -> None:
    parse_line(text)
    parse_line(f"{MARK} {text}")
    kv_budget(100, f"{MARK} full_token={text}", None).to_json()


@pytest.mark.parametrize(
    ("asked", "line", "final", "granted", "difference"),
    [
        (8_000_000, LINE, None, 8_000_000, 0),
        (16_000_000, LINE, None, 12_874_240, -3_125_760),
        (None, LINE, None, 12_874_240, None),
        (8_000_000, LINE, 7_999_744, 7_999_744, -256),
        (8_192, None, 8_192, 8_192, 0),
        (8_192, None, None, None, None),
    ],
)
def test_asked_granted_and_the_difference(
    asked: int | None, line: str | None, final: int | None, granted: int | None, difference: int | None
) -> None:
    budget = kv_budget(asked, line, final)
    assert (budget.granted, budget.difference) == (granted, difference)


def test_a_pin_clamped_below_the_threshold_is_refused_with_both_figures() -> None:
    sentence = kv_budget(16_000_000, LINE, None).clamped(0.98)
    assert sentence is not None
    assert "the KV pin of 16000000 tokens was clamped to 12874240 from 20.50 GiB, 80.5% of it" in sentence
    assert kv_budget(16_000_000, LINE, None).clamped(0.8) is None
    assert kv_budget(None, LINE, None).clamped(1.0) is None


def test_the_line_is_what_progress_keeps_of_the_log() -> None:
    progress = Progress().feed(LINE).feed("max_total_num_tokens=12874240, chunked_prefill_size=4096")
    assert kv_budget(None, progress.memory_line, progress.max_total_tokens).granted == 12874240


def test_ranks_with_different_grants_are_refused_and_a_narrow_one_is_named() -> None:
    def status(granted: int, room: float) -> dict[str, object]:
        return {"kv": {"granted": granted, "available_bytes": room * 2**30}}

    refusals, notes = unequal({"spark1": status(100, 20.0), "spark2": status(90, 12.0), "spark3": status(100, 20.2)})
    assert "spark1 100, spark2 90, spark3 100 tokens" in refusals[0].what
    assert notes == [
        "spark2 has 12.00 GiB for the KV pool, another rank 20.20: something else holds its memory"
    ]
    assert unequal({"spark1": status(100, 20.0), "spark2": status(100, 20.1)}) == ([], [])
