"""The real Engram classes in the engine's environment, without a server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.engines import engine_environment

INSIDE = Path(__file__).parent / "inside"


def inside(python: Path, script: str, *arguments: object) -> dict:
    done = subprocess.run(
        [python, INSIDE / script, *map(str, arguments)],
        env=engine_environment(), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("world_size", "partition"),
    [(1, "balanced"), (3, "balanced"), (3, "contiguous"), (4, "balanced"), (4, "contiguous")],
)
def test_rows_are_bit_identical_to_the_stock_lookup(
    engine_python: Path,
    demo_checkpoint: Path,
    demo_revision: str,
    packed: Callable[[int, str], Path],
    tmp_path: Path,
    world_size: int,
    partition: str,
) -> None:
    rows = packed(world_size, partition)
    found = inside(
        engine_python, "lookup.py", demo_checkpoint, rows, demo_revision, partition, world_size, tmp_path
    )
    assert found["equal"] is True
    assert found["lookups"] >= 10_000
    config = json.loads((demo_checkpoint / "config.json").read_text())
    assert sum(found["rows_owned"]) == sum(config["engram_num_embeddings"])


def test_the_token_map_and_the_geometry_are_sglangs(
    engine_python: Path, demo_checkpoint: Path, repo_root: Path
) -> None:
    found = inside(engine_python, "demo_checkpoint.py", demo_checkpoint)
    config = json.loads((demo_checkpoint / "config.json").read_text())
    assert found["n_compressed"] == config["engram_compressed_vocab_size"]
    assert found["n_tokens"] == config["vocab_size"]
    assert found["rows"] == config["engram_num_embeddings"]
    code = "from vocabulary import make_vocabulary; import json; print(json.dumps(make_vocabulary().compressed_map()))"
    ours = subprocess.run(
        [sys.executable, "-c", code], cwd=repo_root / "demo", capture_output=True, check=True
    )
    assert json.loads(ours.stdout) == found["map"]


def test_the_tokenizer_gives_text_back_and_knows_the_special_tokens(
    engine_python: Path, demo_checkpoint: Path
) -> None:
    found = inside(engine_python, "demo_checkpoint.py", demo_checkpoint)
    assert found["round_trip"] == found["text"]
    assert found["n_ids"] < len(found["text"].encode())
    for token in ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<think>", "</think>", "｜DSML｜"):
        assert len(found["special"][token]) == 1, token
