"""The real Engram classes in the engine's environment, without a server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engines import engine_environment

CASES = [("balanced", 1), ("balanced", 3), ("contiguous", 3), ("balanced", 4), ("contiguous", 4)]
Packed = Callable[[int, str], Path]


@pytest.fixture(scope="module")
def found(
    engine_python: Path,
    demo_checkpoint: Path,
    demo_revision: str,
    packed: Packed,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """What `inside/classes.py` saw."""
    triples = [part for partition, n in CASES for part in (partition, str(n), str(packed(n, partition)))]
    scratch = tmp_path_factory.mktemp("classes")
    script = Path(__file__).parent / "inside" / "classes.py"
    done = subprocess.run(
        [engine_python, script, demo_checkpoint, demo_revision, scratch, *triples],
        env=engine_environment(), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("partition", "world_size"), CASES)
def test_rows_are_bit_identical_to_the_stock_lookup(
    found: dict[str, Any], demo_checkpoint: Path, partition: str, world_size: int
) -> None:
    seen = found["lookups"][f"{partition}-{world_size}"]
    assert seen["equal"] is True
    assert seen["lookups"] >= 10_000
    config = json.loads((demo_checkpoint / "config.json").read_text())
    assert seen["rows_owned"] == sum(config["engram_num_embeddings"])


def test_rows_that_are_submitted_ahead_in_chunks_are_bit_identical(found: dict[str, Any]) -> None:
    seen = found["chunked"]
    assert seen["equal"] is True
    assert seen["flagged"] is False
    # Two layers, chunks of 8 tokens, two chunks at a time.
    assert seen["jobs_ahead"] == [n for tokens in (1, 7, 8, 9, 16, 17, 61) for n in 2 * [2 * min(2, -(-tokens // 8))]]


def test_a_failed_read_is_nan_with_an_error_that_names_its_file(found: dict[str, Any]) -> None:
    seen = found["cut_short"]
    assert seen["all_nan"] is True, "zeros or stale rows would look like an answer"
    ((kind, message),) = seen["errors"]
    assert kind == "StoreCorrupt"
    assert "engram-l1-r0of1.bin" in message
    assert seen["errors_of_the_second"] == 1


def test_a_failed_read_flags_its_own_step_only(found: dict[str, Any]) -> None:
    seen = found["cut_short"]
    assert seen["flagged"] is True
    assert seen["finite"] is True, "NaN would reach the sampler"
    assert seen["flagged_afterwards"] is False
    assert seen["errors_afterwards"] == 0


def test_a_file_that_mixes_tables_with_other_tensors_gives_only_the_others(found: dict[str, Any]) -> None:
    assert len(found["mixed"]) == 2
    for names in found["mixed"].values():
        assert "layers.1.engram.wkv.weight" in names and "lm_head.weight" in names
        assert not [name for name in names if ".engram.embed." in name]


def test_the_token_map_and_the_geometry_are_sglangs(
    found: dict[str, Any], demo_checkpoint: Path, repo_root: Path
) -> None:
    tokens = found["tokens"]
    config = json.loads((demo_checkpoint / "config.json").read_text())
    assert tokens["n_compressed"] == config["engram_compressed_vocab_size"]
    assert tokens["n_tokens"] == config["vocab_size"]
    assert tokens["rows"] == config["engram_num_embeddings"]
    code = "import json, vocabulary; print(json.dumps(vocabulary.make_vocabulary().compressed_map()))"
    ours = subprocess.run([sys.executable, "-c", code], cwd=repo_root / "demo", capture_output=True, check=True)
    assert json.loads(ours.stdout) == tokens["map"]


def test_the_tokenizer_gives_text_back_and_knows_the_special_tokens(found: dict[str, Any]) -> None:
    tokens = found["tokens"]
    assert tokens["round_trip"] == tokens["text"]
    assert tokens["n_ids"] < len(tokens["text"].encode())
    for token in ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<think>", "</think>", "｜DSML｜"):
        assert len(tokens["special"][token]) == 1, token
