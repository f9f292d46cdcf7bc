"""What is kept for one launch is found again by the same launch, and by no other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dsv41_supervisor.rank.launch import launch_fingerprint
from dsv41_supervisor.rank.plan import Boot, rank_document
from dsv41_supervisor.settings import parse

from tests.unit.fleets import good, with_value

FIRST, SECOND = Boot("20260102T030405-abcd", 7, 20007), Boot("20260103T030405-dcba", 8, 20008)


def launch(document: dict[str, Any], node: str = "spark1", boot: Boot = FIRST) -> str:
    return str(rank_document(parse(json.dumps(document)), node, boot)["launch"])


def test_every_rank_and_every_boot_of_a_configuration_has_the_same() -> None:
    seen = {launch(good(), node, boot) for node in ("spark1", "spark2", "spark3") for boot in (FIRST, SECOND)}
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("engine.backends", {"fp8_gemm": "flashinfer_cutlass"}),
        ("engine.memory", {"chunked_prefill_size": 1024}),
        ("engine.environment", {"SGLANG_FLASHINFER_MOE_FUSED_FINALIZE": "0"}),
        ("engine.fp4_indexer", True),
        ("engine.python", "/opt/other/bin/python"),
        ("adapters", {"loop_abort": {}}),
    ],
)
def test_what_chooses_kernels_changes_it(path: str, value: object) -> None:
    assert launch(with_value(path, value)) != launch(good())


@pytest.mark.parametrize(("path", "value"), [("gateway", {"max_tokens_cap": 1000}), ("guard", {"period_s": 2.0})])
def test_what_does_not_reach_the_engine_leaves_it(path: str, value: object) -> None:
    assert launch(with_value(path, value)) == launch(good())


def test_the_name_of_a_run_is_no_part_of_it() -> None:
    argv = ["python", "-m", "sglang.launch_server", "--tp-size", "3"]
    assert launch_fingerprint(argv, {"SGLANG_RUN_ID": "one"}, {}) == launch_fingerprint(argv, {}, {})
    assert launch_fingerprint(argv, {"NCCL_PROTO": "LL"}, {}) != launch_fingerprint(argv, {}, {})
