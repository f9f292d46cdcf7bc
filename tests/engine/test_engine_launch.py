"""The golden launch plans, given to the pinned SGLang's own argument parser and its own table of variables."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engines import engine_environment
from tests.harness.launch_golden import DIRECTORY, read_plan
from tests.harness.recipes import rebuilt_argv, recipes

BAD = [["--model-path", "/m", "--tp-size", "three"], ["--model-path", "/m", "--fp8-gemm-backend", "b12x"]]
"""Lines that must be refused, so that "it parses" says something."""
READ_ELSEWHERE = {"SGLANG_HOST_IP": "utils/network.py"}


def for_sglang(file: Path) -> tuple[list[str], dict[str, str]]:
    """What SGLang itself is told: without the Python that it runs in."""
    argv, environment = read_plan(file.read_text())
    return argv[argv.index("sglang.launch_server") + 1 :], environment


PLANS = {file.stem: for_sglang(file) for file in sorted(DIRECTORY.glob("tp*-rank*.plan"))}
"""A container's plan has the same line behind podman's part (tests/unit/test_container_plan.py)."""


@pytest.fixture(scope="module")
def seen(engine_python: Path) -> dict[str, Any]:
    """What `inside/launch_lines.py` saw. It exits the process for no line."""
    variables = {
        (name, value)
        for _, environment in PLANS.values()
        for name, value in environment.items()
        if name.startswith("SGLANG_")
    }
    asked = {
        "lines": [
            *(argv for argv, _ in PLANS.values()),
            *BAD,
            rebuilt_argv(recipes()),
        ],
        "variables": sorted(variables | {("SGLANG_EMPTY_CACHE_INTERVAL", "often"), ("SGLANG_NO_SUCH_THING", "1")}),
    }
    script = Path(__file__).parent / "inside" / "launch_lines.py"
    done = subprocess.run(
        [engine_python, script],
        env=engine_environment(),
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def lines_of(seen: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return dict(zip(PLANS, seen["lines"], strict=False))


def test_there_is_a_plan_for_each_rank_of_both_profiles() -> None:
    assert set(PLANS) >= {f"tp3-rank{n}" for n in range(3)} | {f"tp4-rank{n}" for n in range(4)}


def test_sglang_parses_every_ranks_command_line(seen: dict[str, Any]) -> None:
    assert {name: line.get("refused") for name, line in lines_of(seen).items()} == dict.fromkeys(PLANS)


def test_sglang_refuses_lines_that_are_wrong(seen: dict[str, Any]) -> None:
    assert [line.get("refused") for line in seen["lines"][len(PLANS) : len(PLANS) + len(BAD)]] == [2] * len(BAD)


def test_every_option_is_spelt_in_full(seen: dict[str, Any]) -> None:
    """A shortened one parses until a version brings a second option with the same beginning."""
    used = {argument for argv, _ in PLANS.values() for argument in argv if argument.startswith("--")}
    assert used <= set(seen["options"])
    assert "--tp" not in seen["options"], "the recipe's own spelling is a shortened one"


def test_sglang_reads_what_the_profile_means(seen: dict[str, Any]) -> None:
    three, four = lines_of(seen)["tp3-rank2"], lines_of(seen)["tp4-rank1"]
    both = {
        "speculative_algorithm": "DSPARK", "speculative_dspark_block_size": 5, "attention_backend": "dsv4",
        "moe_runner_backend": "flashinfer_mxfp4", "fp8_gemm_runner_backend": "flashinfer_cutlass", "host": "127.0.0.1",
        "tool_call_parser": "deepseekv41", "reasoning_parser": "deepseek-v41", "mem_fraction_static": 0.8, "ep_size": 1,
        "min_free_slots_delay": 1, "watchdog_timeout": 1800.0, "model_loader_extra_config": '{"num_threads": 1}',
    }  # fmt: skip
    assert both.items() <= three.items() and both.items() <= four.items()
    assert (three["tp_size"], three["nnodes"], three["node_rank"], three["context_length"]) == (3, 3, 2, 262144)
    assert (four["tp_size"], four["nnodes"], four["node_rank"], four["context_length"]) == (4, 4, 1, 1048576)
    assert (four["max_total_tokens"], four["max_running_requests"]) == (8_000_000, 16)
    assert four["enable_decoder_swa_bounded_replay"] is True and four["enable_deepseek_v4_fp4_indexer"] is True


def test_sglang_knows_every_variable_and_can_read_its_value(seen: dict[str, Any]) -> None:
    """It answers a malformed variable with a warning and its default, and an unknown one with nothing."""
    variables = dict(seen["variables"])
    assert variables.pop("SGLANG_NO_SUCH_THING") == {"unknown": "SGLANG_NO_SUCH_THING"}
    assert "malformed" in variables.pop("SGLANG_EMPTY_CACHE_INTERVAL")
    assert {name for name, answer in variables.items() if "unknown" in answer} == set(READ_ELSEWHERE)
    assert {n: a for n, a in variables.items() if n not in READ_ELSEWHERE and "value" not in a} == {}
    assert variables["SGLANG_DSV41_REASONING_EFFORT"] == {"value": "75"}
    assert variables["SGLANG_FLASHINFER_MOE_FUSED_FINALIZE"] == {"value": False}


def test_a_variable_outside_of_sglangs_table_is_read_where_we_think(engine_python: Path) -> None:
    for name, file in READ_ELSEWHERE.items():
        (source,) = engine_python.parents[1].glob(f"lib/python3*/site-packages/sglang/srt/{file}")
        assert f'"{name}"' in source.read_text()


def test_the_recipes_own_launch_line_parses_too(seen: dict[str, Any]) -> None:
    """So where our plan differs from it, that is a decision and no necessity."""
    line = seen["lines"][-1]
    assert (line["tp_size"], line["chunked_prefill_size"], line["host"]) == (4, 4096, "0.0.0.0")


def test_the_settings_know_the_variables_of_this_sglang(engine_python: Path) -> None:
    tool = Path(__file__).resolve().parents[2] / "tools" / "sglang_variables.py"
    argv = [engine_python, tool, "--check"]
    done = subprocess.run(argv, env=engine_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
