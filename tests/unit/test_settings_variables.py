"""Variables for SGLang are refused where it would silently not read them."""

from __future__ import annotations

import json

import pytest
from dsv41_supervisor.errors import Dsv41Error
from dsv41_supervisor.settings import parse
from dsv41_supervisor.settings.engine import PLANNED_VARIABLES
from dsv41_supervisor.settings.sglang_variables import GONE, NUMBERS, SWITCHES, TEXTS, WHOLE_NUMBERS

from tests.unit.fleets import with_value


def refused(**environment: str) -> str:
    with pytest.raises(Dsv41Error) as error:
        parse(json.dumps(with_value("engine.environment", environment)))
    return str(error.value)


def test_what_sglang_can_read_is_taken() -> None:
    environment = {
        "SGLANG_FLASHINFER_MOE_FUSED_FINALIZE": "0",
        "SGLANG_EMPTY_CACHE_INTERVAL": "2.5",
        "SGLANG_RUST_BUILD_MODE": "never",
        "NCCL_DEBUG": "INFO",
    }
    assert parse(json.dumps(with_value("engine.environment", environment))).engine.environment == environment


def test_a_misspelt_name_is_refused_with_the_one_that_was_meant() -> None:
    said = refused(SGLANG_FLASHINFER_MOE_FUSED_FINALISE="0")
    assert "engine.environment.SGLANG_FLASHINFER_MOE_FUSED_FINALISE is no variable of the pinned SGLang" in said
    assert "did you mean SGLANG_FLASHINFER_MOE_FUSED_FINALIZE?" in said


@pytest.mark.parametrize(
    ("name", "value", "reads"),
    [
        ("SGLANG_FLASHINFER_MOE_FUSED_FINALIZE", "off", "true or false"),
        ("SGLANG_EMPTY_CACHE_INTERVAL", "often", "a number"),
        ("SGLANG_HEALTH_CHECK_TIMEOUT", "", None),
    ],
)
def test_a_value_that_it_would_replace_by_its_default_is_refused(name: str, value: str, reads: str | None) -> None:
    if reads is None:
        parse(json.dumps(with_value("engine.environment", {name: value})))  # read as text, by whoever reads it
    else:
        assert f"engine.environment.{name} is '{value}', SGLang reads {reads} there" in refused(**{name: value})


def test_the_recipes_switch_that_is_gone_is_refused() -> None:
    said = refused(SGLANG_DSPARK_FOLDED_SAMPLING="2")
    assert "SGLANG_DSPARK_FOLDED_SAMPLING does nothing in the pinned SGLang" in said


def test_every_problem_comes_at_once() -> None:
    said = refused(SGLANG_NO_SUCH_THING_AT_ALL="1", SGLANG_HOST_IP="192.0.2.9", SGLANG_EMPTY_CACHE_INTERVAL="x")
    for name in ("SGLANG_NO_SUCH_THING_AT_ALL", "SGLANG_HOST_IP", "SGLANG_EMPTY_CACHE_INTERVAL"):
        assert f"engine.environment.{name} " in said


def test_kinds_do_not_overlap_and_hold_what_the_plan_writes() -> None:
    kinds = (SWITCHES, WHOLE_NUMBERS, NUMBERS, TEXTS, GONE)
    assert sum(map(len, kinds)) == len(frozenset().union(*kinds)) > 700
    planned = {name for name in PLANNED_VARIABLES if name.startswith("SGLANG_")}
    assert planned <= frozenset().union(*kinds[:4])
