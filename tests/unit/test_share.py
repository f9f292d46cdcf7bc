"""Stage 3: a checkpoint that is missing, cut short or of another revision is refused before anything starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from dsv41_supervisor.settings import Settings, parse
from dsv41_supervisor.share import check_checkpoint, checkpoint_files

from tests.unit.fleets import good


@pytest.fixture
def checkpoint(demo_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_checkpoint, tmp_path / "checkpoint"))


def _settings(checkpoint: Path, manifest: bool = False) -> Settings:
    document = good()
    revision = json.loads((checkpoint / "dsv41-checkpoint.json").read_text())["revision"]
    document["checkpoint"] = {"path": str(checkpoint), "revision": revision}
    if manifest:
        document["checkpoint"]["manifest"] = str(checkpoint / "dsv41-checkpoint.json")
    return parse(json.dumps(document))


def _words(checkpoint: Path, manifest: bool = False) -> str:
    return "\n".join(str(r) for r in check_checkpoint(_settings(checkpoint, manifest), "spark2").refusals)


def test_a_whole_checkpoint_passes(checkpoint: Path) -> None:
    report = check_checkpoint(_settings(checkpoint, manifest=True), "spark2")
    assert report.refusals == ()
    assert report.n_files == len(checkpoint_files(checkpoint)) > 1
    assert report.n_bytes > 15e6


def test_a_missing_file_is_named(checkpoint: Path) -> None:
    victim = checkpoint / checkpoint_files(checkpoint)[-1]
    victim.unlink()
    text = _words(checkpoint)
    assert f"spark2 rank 1, share: {victim} cannot be read: No such file or directory." in text
    assert "Fetch the checkpoint again on spark2, or correct checkpoint.path." in text


def test_a_file_cut_short_is_named_with_both_sizes(checkpoint: Path) -> None:
    victim = checkpoint / checkpoint_files(checkpoint)[0]
    size = victim.stat().st_size
    with victim.open("r+b") as file:
        file.truncate(size - 1)
    assert f"{victim} is cut short: {size - 1} bytes, expected {size}." in _words(checkpoint)


@pytest.mark.parametrize("n_bytes", [0, 7, 100])
def test_a_file_cut_within_its_header_is_refused(checkpoint: Path, n_bytes: int) -> None:
    victim = checkpoint / checkpoint_files(checkpoint)[0]
    with victim.open("r+b") as file:
        file.truncate(n_bytes)
    assert f"{victim} is cut short" in _words(checkpoint)


def test_every_problem_is_told_at_once(checkpoint: Path) -> None:
    names = checkpoint_files(checkpoint)
    (checkpoint / names[0]).unlink()
    (checkpoint / "tokenizer.json").unlink()
    text = _words(checkpoint)
    assert names[0] in text
    assert "tokenizer.json is missing" in text


def test_an_index_that_names_files_elsewhere_is_refused(checkpoint: Path) -> None:
    index = checkpoint / "model.safetensors.index.json"
    raw = json.loads(index.read_text())
    raw["weight_map"]["x"] = "../../etc/passwd"
    index.write_text(json.dumps(raw))
    assert "names files outside its directory" in _words(checkpoint)


def test_a_missing_directory_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    settings = _settings(checkpoint)
    shutil.rmtree(checkpoint)
    assert "there is no checkpoint directory" in str(check_checkpoint(settings, "spark1").refusals[0])


@pytest.mark.parametrize("header", ["[]", '{"a": {}}', '{"a": {"data_offsets": [0, "x"]}}', "{", '{"a": 1}'])
def test_a_header_of_another_shape_is_a_refusal_and_not_a_crash(checkpoint: Path, header: str) -> None:
    victim = checkpoint / checkpoint_files(checkpoint)[0]
    victim.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    assert f"{victim} has a damaged header." in _words(checkpoint)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": {}}', '{"weight_map": []}', "{"])
def test_an_index_of_another_shape_is_a_refusal_and_not_a_crash(checkpoint: Path, index: str) -> None:
    (checkpoint / "model.safetensors.index.json").write_text(index)
    assert "model.safetensors.index.json" in _words(checkpoint)
