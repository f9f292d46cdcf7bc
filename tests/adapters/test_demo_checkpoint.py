"""The demo checkpoint's maker, with the standard library alone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dsv41_rowstore import engram_geometry

REPOSITORY = Path(__file__).resolve().parents[2]

SCRIPT = REPOSITORY / "demo" / "make_checkpoint.py"


def make(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """-I: no site-packages of ours, no PYTHONPATH; what it needs must be in the standard library."""
    command = [sys.executable, "-I", "-S", str(SCRIPT), str(out), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "checkpoint"
    assert make(out).returncode == 0
    return out


def manifest(out: Path) -> dict:
    return json.loads((out / "dsv41-checkpoint.json").read_text())


def tensors(out: Path) -> dict[str, dict]:
    found = {}
    for file in sorted(out.glob("*.safetensors")):
        with open(file, "rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        header.pop("__metadata__")
        found.update({name: {**entry, "file": file.name} for name, entry in header.items()})
    return found


def test_the_manifest_names_every_file_with_its_hash(checkpoint: Path) -> None:
    said = manifest(checkpoint)
    present = {path.name for path in checkpoint.iterdir()} - {"dsv41-checkpoint.json"}
    assert said["format"] == 1 and set(said["files"]) == present
    for name, entry in said["files"].items():
        content = (checkpoint / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["bytes"], entry["sha256"])
    assert len(said["revision"]) == 64


def test_it_is_the_same_checkpoint_every_time_and_another_with_another_seed(checkpoint: Path, tmp_path: Path) -> None:
    assert make(tmp_path / "again").returncode == 0
    assert make(tmp_path / "other", "--seed", "1").returncode == 0
    assert manifest(tmp_path / "again")["revision"] == manifest(checkpoint)["revision"]
    assert manifest(tmp_path / "other")["revision"] != manifest(checkpoint)["revision"]


def test_a_finished_checkpoint_is_left_alone(checkpoint: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in checkpoint.iterdir()}
    done = make(checkpoint, "--json")
    assert json.loads(done.stdout)["written"] is False
    assert {path.name: path.stat().st_mtime_ns for path in checkpoint.iterdir()} == before


@pytest.mark.parametrize("fault", ["byte", "short", "missing", "seed"])
def test_anything_else_is_made_again(checkpoint: Path, tmp_path: Path, fault: str) -> None:
    out = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, out)
    shard = out / "model-00002-of-00004.safetensors"
    if fault == "byte":
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
    elif fault == "short":
        os.truncate(shard, 1000)
    elif fault == "missing":
        shard.unlink()
    (tmp_path / "checkpoint.tmp").mkdir()  # what a killed run leaves
    (tmp_path / "checkpoint.tmp" / "model.safetensors").write_bytes(b"half")
    done = make(out, "--json", *(["--seed", "7"] if fault == "seed" else []))
    assert json.loads(done.stdout)["written"] is True
    assert (manifest(out)["revision"] == manifest(checkpoint)["revision"]) == (fault != "seed")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_files_of_somebody_else_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("words")
    done = make(tmp_path)
    assert done.returncode == 78
    assert done.stderr == (
        f"demo checkpoint: {tmp_path} holds files but no dsv41-checkpoint.json, "
        "so it is not ours to replace. Name another output, or empty it.\n"
    )
    assert (tmp_path / "thesis.tex").read_text() == "words"


def test_an_output_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = make(tmp_path / "file" / "out")
    assert done.returncode == 78
    assert f"cannot use directory {tmp_path / 'file'} (File exists)." in done.stderr


def test_no_space_left_is_said_and_nothing_is_left_behind(tmp_path: Path) -> None:
    """A file system of 4 MiB in a mount namespace of its own, which ends with the command."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    script = (
        f"mount -t tmpfs -o size=4m none {tmp_path} || exit 99; "
        f"{sys.executable} -I -S {SCRIPT} {tmp_path}/out; status=$?; ls -A {tmp_path}; exit $status"
    )
    done = subprocess.run([*unshare, "sh", "-c", script], capture_output=True, text=True, timeout=60)
    if done.returncode in (1, 99):
        pytest.skip(f"this machine gives no mount namespace: {done.stderr.strip()}")
    assert done.returncode == 69
    assert done.stderr.startswith(f"demo checkpoint: no space left for {tmp_path}/out (")
    assert done.stdout == ""


def test_tables_are_stored_as_the_published_checkpoint_stores_them(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    found = tensors(checkpoint)
    files = set()
    for geometry in engram_geometry(config):
        weight = found[f"layers.{geometry.layer}.engram.embed.weight"]
        scale = found[f"layers.{geometry.layer}.engram.embed.scale"]
        assert (weight["dtype"], weight["shape"]) == ("F8_E4M3", [geometry.n_rows, 256])
        assert (scale["dtype"], scale["shape"]) == ("F8_E8M0", [geometry.n_rows, 8])
        assert weight["file"] == scale["file"]
        files.add(weight["file"])
    assert len(files) == 2
    others = {entry["file"] for name, entry in found.items() if ".engram.embed." not in name}
    assert not files & others, "a table shares its file with other tensors"
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: entry["file"] for name, entry in found.items()}


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_no_rank_needs_padding(checkpoint: Path, world_size: int) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    divided = ("num_attention_heads", "num_key_value_heads", "vocab_size", "intermediate_size", "hidden_size")
    assert all(config[key] % world_size == 0 for key in divided)
    assert config["vocab_size"] % (64 * world_size) == 0 or world_size == 1


def test_rows_hold_no_nan_and_scales_differ(checkpoint: Path) -> None:
    for layer, entry in ((1, 3), (14, 4)):
        content = (checkpoint / f"model-0000{entry}-of-00004.safetensors").read_bytes()
        data = content[8 + int.from_bytes(content[:8], "little") :]
        entries = tensors(checkpoint)
        start, stop = entries[f"layers.{layer}.engram.embed.weight"]["data_offsets"]
        assert not {0x7F, 0xFF} & set(data[start:stop])
        start, stop = entries[f"layers.{layer}.engram.embed.scale"]["data_offsets"]
        assert set(data[start:stop]) == set(range(124, 130))


def test_the_tokenizer_covers_every_id(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    ids = set(tokenizer["model"]["vocab"].values()) | {token["id"] for token in tokenizer["added_tokens"]}
    assert ids == set(range(config["vocab_size"]))
    special = [token["content"] for token in tokenizer["added_tokens"] if token["special"]]
    assert special[:3] == ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
    assert {"<｜User｜>", "<｜Assistant｜>", "<｜System｜>", "<think>", "</think>", "｜DSML｜"} <= set(special)
