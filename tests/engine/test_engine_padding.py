"""tp_pad against SGLang's own config class, tensors, vocabulary shards and MXFP8 scales. Its attention needs a GPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engines import engine_environment


@pytest.fixture(scope="module")
def seen(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `inside/padding.py` saw."""
    script = Path(__file__).parent / "inside" / "padding.py"
    argv = [engine_python, script, tmp_path_factory.mktemp("padding")]
    done = subprocess.run(argv, env=engine_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_config_is_padded_once_however_often_it_is_copied(seen: dict[str, Any]) -> None:
    assert seen["heads"] == [[96, 12]] * 3
    assert seen["empty"] is None


def test_a_model_that_cannot_be_padded_ends_the_process_with_every_reason(seen: dict[str, Any]) -> None:
    assert seen["refused"].startswith("adapter tp_pad refused: world size 3: moe_intermediate_size 2305 does not make ")
    assert "shared_intermediate_size" in seen["refused"]


def test_only_what_heads_groups_and_draft_experts_run_along_grows(seen: dict[str, Any]) -> None:
    assert seen["shapes"] == {
        "layers.0.attn.attn_sink": [96],
        "layers.0.attn.wq_b.weight": [96 * 32, 96],
        "layers.0.attn.wo_a.weight": [12 * 64, 256],
        "layers.0.attn.wo_b.weight": [128, 12 * 64],
        "layers.0.attn.wq_b.scale": [96, 3],
        "layers.0.attn.wo_b.scale": [4, 24],
        "layers.0.attn.indexer.wq_b.weight": [32, 96],
        "layers.0.ffn.experts.0.w1.weight": [8, 8],
        "mtp.0.ffn.gate.weight": [129, 128],
        "mtp.0.ffn.gate.bias": [129],
    }
    assert seen["kept"] and seen["scales"] == [1.0, 2.0]
    assert seen["the model's own gate is left alone"] == 384


def test_a_padded_expert_is_never_chosen(seen: dict[str, Any]) -> None:
    (bias,) = seen["never"]
    assert bias < -1e29


def test_three_padded_ranks_sum_to_what_one_computes(seen: dict[str, Any]) -> None:
    """The third rank adds exactly nothing; the rest differs by no more than float32 differs from float64."""
    assert seen["padding adds"] == 0.0
    assert seen["error over float64's"] <= 2.0


def test_sglang_shards_the_vocabulary_over_three_ranks_itself(seen: dict[str, Any]) -> None:
    starts, ends, sizes = zip(*seen["vocabulary"], strict=True)
    assert starts == (0, *ends[:-1]) and ends[-1] == 129_280 and set(sizes) == {43_136}


def test_mxfp8_takes_the_padded_scales_and_rejects_memory_never_written(seen: dict[str, Any]) -> None:
    assert seen["mxfp8"] == [96 * 32, 3]
    assert seen["mxfp8 of denormals"] == "rejected"
