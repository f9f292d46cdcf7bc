"""Stage 4: rows of another fleet are found by their header, packed again, and never trusted half-written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.errors import Dsv41Error, Exit
from dsv41_supervisor.pack import check_rows, pack
from dsv41_supervisor.settings import Settings, parse

from tests.unit.fleets import good


def _settings(checkpoint: Path, tmp_path: Path, revision: str, rows: Path | None = None, **more: Any) -> Settings:
    document = good()
    document["checkpoint"] = {"path": str(checkpoint), "revision": revision}
    document["pack"] = {"directory": str(rows or tmp_path / "rows"), "cache_bytes": 1 << 20} | more
    document["supervisor"] = {"run_dir": str(tmp_path / "run"), "state_dir": str(tmp_path / "state")}
    return parse(json.dumps(document))


def test_missing_rows_are_packed_and_good_rows_are_left_alone(
    demo_checkpoint: Path, demo_revision: str, tmp_path: Path
) -> None:
    settings = _settings(demo_checkpoint, tmp_path, demo_revision)
    assert set(check_rows(settings, "spark2").to_pack) == {1, 14}
    shown: list[tuple[int, int]] = []
    manifest = pack(settings, "spark2", lambda done, total, rate: shown.append((done, total)))
    assert [layer.layer for layer in manifest.layers] == [1, 14]
    assert shown and shown[-1][0] == shown[-1][1]
    inodes = {path: path.stat().st_ino for path in (tmp_path / "rows").iterdir()}
    assert pack(settings, "spark2").layers == manifest.layers
    assert {path: path.stat().st_ino for path in (tmp_path / "rows").iterdir()} == inodes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"revision": "feedc0de" * 8}, "revision "),
        ({"partition": "contiguous"}, "partition balanced, expected contiguous"),
    ],
)
def test_rows_of_another_revision_or_partition_are_named_with_both_values(
    demo_checkpoint: Path, demo_revision: str, tmp_path: Path, change: dict[str, str], words: str
) -> None:
    pack(_settings(demo_checkpoint, tmp_path, demo_revision), "spark1")
    revision = change.pop("revision", demo_revision)
    found = check_rows(_settings(demo_checkpoint, tmp_path, revision, **change), "spark1")
    assert set(found.to_pack) == {1, 14}
    assert all(words in why for why in found.to_pack.values()), found.to_pack


def test_a_damaged_header_is_packed_again(demo_checkpoint: Path, demo_revision: str, tmp_path: Path) -> None:
    settings = _settings(demo_checkpoint, tmp_path, demo_revision)
    first = Path(pack(settings, "spark3").layers[0].path)
    good_bytes = first.read_bytes()
    with first.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    assert "is not usable" in check_rows(settings, "spark3").to_pack[1]
    pack(settings, "spark3")
    assert first.read_bytes() == good_bytes


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can be mounted by root only")
def test_a_full_drive_is_refused_with_both_figures_and_nothing_is_left_that_a_start_would_trust(
    demo_checkpoint: Path, demo_revision: str, tmp_path: Path
) -> None:
    document = good()
    document["checkpoint"] = {"path": str(demo_checkpoint), "revision": demo_revision}
    document["pack"] = {"directory": str(tmp_path / "small"), "cache_bytes": 1 << 20}
    document["supervisor"] = {"run_dir": str(tmp_path / "run"), "state_dir": str(tmp_path / "state")}
    settings_path = tmp_path / "settings.json"
    settings_path.write_text(json.dumps(document))
    (tmp_path / "small").mkdir()
    # A mount namespace of its own: the small file system is seen by this command only and goes with it.
    script = (
        f"mount -t tmpfs -o size=1m tmpfs {tmp_path}/small && "
        f"{sys.executable} -m dsv41_supervisor pack --settings {settings_path} --node spark1; "
        f"status=$?; ls {tmp_path}/small; exit $status"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == Exit.UNAVAILABLE, done.stderr
    assert "MiB free, packing needs" in done.stderr
    assert "Free some space, or set pack.directory elsewhere." in done.stderr
    assert done.stdout == ""


def test_a_checkpoint_without_tables_is_refused_by_the_first_missing_thing(demo_revision: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Dsv41Error, match=r"config\.json cannot be read"):
        pack(_settings(tmp_path / "empty", tmp_path, demo_revision), "spark1")


@pytest.mark.parametrize(
    "config", ["[1, 2]", '{"engram_layer_ids": null}', '{"engram_layer_ids": [1], "engram_n_heads": []}']
)
def test_a_config_of_another_shape_is_a_refusal_and_not_a_crash(
    demo_revision: str, tmp_path: Path, config: str
) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text(config)
    manifest = check_rows(_settings(tmp_path / "checkpoint", tmp_path, demo_revision), "spark1")
    assert manifest.refusals


def _command(tmp_path: Path, settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "settings.json"
    path.write_text(settings.model_dump_json())
    argv = [sys.executable, "-m", "dsv41_supervisor", "pack", "--settings", str(path), "--node", "spark1", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


def test_a_checkpoint_exchanged_under_the_same_revision_is_packed_again(
    demo_checkpoint: Path, demo_revision: str, tmp_path: Path
) -> None:
    copy = tmp_path / "checkpoint"
    shutil.copytree(demo_checkpoint, copy)
    settings = _settings(copy, tmp_path, demo_revision)
    assert pack(settings, "spark1").packed == (1, 14)
    assert pack(settings, "spark1").packed == ()
    weight_map = json.loads((copy / "model.safetensors.index.json").read_text())["weight_map"]
    table = copy / weight_map["layers.14.engram.embed.weight"]
    content = bytearray(table.read_bytes())
    for at in range(len(content) // 2, len(content)):
        content[at] ^= 1
    table.write_bytes(content)
    assert pack(settings, "spark1").packed == (14,)
    assert _command(tmp_path, settings, "--verify").returncode == Exit.OK


def test_verify_checks_something_or_says_that_it_could_not(
    demo_checkpoint: Path, demo_revision: str, tmp_path: Path
) -> None:
    settings = _settings(demo_checkpoint, tmp_path, demo_revision)
    pack(settings, "spark1")
    done = _command(tmp_path, settings, "--verify")
    assert (done.returncode, done.stdout) == (Exit.OK, "spark1: 2 packed files are good (every segment)\n")
    assert "checking engram-l1-r0of3.bin: 100 % of" in done.stderr
    sampled = json.loads(_command(tmp_path, settings, "--verify", "--sample", "1", "--json").stdout)
    assert sampled["sample"] == 1 and [file["layer"] for file in sampled["good"]] == [1, 14]
    for sample in ("0", "-1", "x"):
        assert _command(tmp_path, settings, "--verify", "--sample", sample).returncode == 2
    assert "--sample goes with --verify." in _command(tmp_path, settings, "--sample", "1").stderr
    (tmp_path / "empty").mkdir()
    nowhere = _settings(tmp_path / "empty", tmp_path, demo_revision)
    done = _command(tmp_path, nowhere, "--verify")
    assert done.returncode == Exit.REFUSED and "config.json cannot be read" in done.stderr and not done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can be mounted by root only")
def test_an_interrupted_packing_is_carried_on_where_only_its_rest_fits(
    demo_checkpoint: Path, demo_revision: str, tmp_path: Path
) -> None:
    settings = _settings(demo_checkpoint, tmp_path, demo_revision, rows=tmp_path / "small")
    whole = pack(_settings(demo_checkpoint, tmp_path, demo_revision, rows=tmp_path / "large"), "spark1")
    sizes = [Path(layer.path).stat().st_size for layer in whole.layers]
    (tmp_path / "small").mkdir()
    kib = (sum(sizes) + (64 << 10)) >> 10
    path = tmp_path / "settings.json"
    path.write_text(settings.model_dump_json())
    # What a killed packing leaves: the file's blocks are allocated, its rows not all written.
    script = (
        f"mount -t tmpfs -o size={kib}k tmpfs {tmp_path}/small && "
        f"fallocate -l {sizes[0]} {tmp_path}/small/{Path(whole.layers[0].path).name}.tmp && "
        f"{sys.executable} -m dsv41_supervisor pack --settings {path} --node spark1"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == Exit.OK, done.stderr
