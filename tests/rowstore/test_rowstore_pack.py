from __future__ import annotations

import errno
import json
import os
import random

import pytest
from dsv41_rowstore import (
    Partition,
    RowFileRefused,
    RowStoreError,
    StoreCorrupt,
    pack_layer,
    packer,
    read_header,
    rows_path,
    verify_rows,
)


def pack(checkpoint, out, layer=1, rank=0, world_size=1, partition=Partition.BALANCED, **kwargs):
    kwargs.setdefault("revision", checkpoint.revision)
    return pack_layer(
        checkpoint.path, out, layer=layer, rank=rank, world_size=world_size, partition=partition, **kwargs
    )


def segments_of(monkeypatch, rows, checkpoint_every=2):
    """Small segments, so that a tiny table has many."""
    from dsv41_rowstore import layout

    for module in (packer, layout):
        monkeypatch.setattr(module, "SEGMENT_ROWS", rows)
    monkeypatch.setattr(packer, "SEGMENT_BYTES", rows * 264)
    monkeypatch.setattr(packer, "CHECKPOINT_SEGMENTS", checkpoint_every)


@pytest.mark.parametrize("partition", Partition)
@pytest.mark.parametrize("world_size", [1, 3, 4, 5, 30])
def test_packed_rows_are_the_planes_side_by_side(checkpoint, tmp_path, partition, world_size):
    total = 0
    for rank in range(world_size):
        header = pack(checkpoint, tmp_path, 14, rank, world_size, partition)
        raw = rows_path(tmp_path, 14, rank, world_size).read_bytes()
        owned = [
            row
            for row in range(header.table_rows)
            if checkpoint.owner(14, row, world_size, partition) == rank
        ]
        assert raw[4096 : 4096 + 264 * header.n_rows] == b"".join(checkpoint.row(14, row) for row in owned)
        total += header.n_rows
    assert total == checkpoint.geometry[14].n_rows
    assert not list(tmp_path.glob("*.tmp"))


def test_a_prefix_a_nested_config_and_a_single_file_are_found(checkpoint_maker, tmp_path):
    made = checkpoint_maker(tmp_path / "c", prefix="model.language_model.", single=True)
    header = pack(made, tmp_path)
    verify_rows(rows_path(tmp_path, 1, 0, 1), sample=None, checkpoint=made.path)
    assert header.n_rows == made.geometry[1].n_rows


def test_a_finished_file_is_left_alone_and_another_revision_replaces_it(checkpoint, tmp_path):
    pack(checkpoint, tmp_path)
    path = rows_path(tmp_path, 1, 0, 1)
    before = path.stat()
    seen = []
    pack(checkpoint, tmp_path, progress=seen.append)
    assert path.stat() == before
    assert [p.stage for p in seen] == ["kept"]
    assert pack(checkpoint, tmp_path, revision="other").revision == "other"
    assert path.stat().st_ino != before.st_ino


def test_a_checkpoint_exchanged_under_the_same_revision_is_packed_again(
    checkpoint, checkpoint_maker, tmp_path
):
    pack(checkpoint, tmp_path)
    other = checkpoint_maker(tmp_path / "other", seed=8)
    pack(other, tmp_path)
    verify_rows(rows_path(tmp_path, 1, 0, 1), checkpoint=other.path)
    with pytest.raises(StoreCorrupt, match="differs from the checkpoint"):
        verify_rows(rows_path(tmp_path, 1, 0, 1), checkpoint=checkpoint.path)


def test_progress_ends_at_the_whole_and_gives_rate_and_time_left(checkpoint, tmp_path, monkeypatch):
    segments_of(monkeypatch, 100)
    seen = []
    header = pack(checkpoint, tmp_path, progress=seen.append)
    assert seen[-1].done_bytes == seen[-1].total_bytes == header.n_rows * 264
    assert [p.done_bytes for p in seen] == sorted(p.done_bytes for p in seen)
    assert seen[0].rate_bytes_per_s > 0 and seen[0].left_s > 0 and seen[-1].left_s == 0


class Stop(Exception):
    pass


def test_an_interrupted_pack_carries_on_from_its_last_durable_segment(checkpoint, tmp_path, monkeypatch):
    segments_of(monkeypatch, 100)

    def stop_at_seven(progress):
        if progress.done_bytes >= 7 * 26400:
            raise Stop

    with pytest.raises(Stop):
        pack(checkpoint, tmp_path, progress=stop_at_seven)
    path = rows_path(tmp_path, 1, 0, 1)
    assert not path.exists() and path.with_name(path.name + ".tmp").exists()
    with pytest.raises(RowFileRefused, match="never finished"):
        read_header(path.with_name(path.name + ".tmp"))
    seen = []
    pack(checkpoint, tmp_path, progress=seen.append)
    assert [p.done_bytes // 26400 for p in seen if p.stage == "checking"] == [1, 2, 3, 4, 5, 6]
    assert next(p for p in seen if p.stage == "packing").done_bytes == 7 * 26400
    verify_rows(path, checkpoint=checkpoint.path)


def test_a_restart_does_not_trust_a_damaged_segment(checkpoint, tmp_path, monkeypatch):
    segments_of(monkeypatch, 100)

    def stop(progress):
        if progress.done_bytes >= 7 * 26400:
            raise Stop

    with pytest.raises(Stop):
        pack(checkpoint, tmp_path, progress=stop)
    path = rows_path(tmp_path, 1, 0, 1)
    with open(path.with_name(path.name + ".tmp"), "r+b") as file:
        file.seek(4096 + 26400 * 3 + 5)
        file.write(b"torn")
    seen = []
    pack(checkpoint, tmp_path, progress=seen.append)
    assert next(p for p in seen if p.stage == "packing").done_bytes == 4 * 26400
    verify_rows(path, checkpoint=checkpoint.path)


@pytest.mark.parametrize("change", ["revision", "checkpoint"])
def test_a_restart_does_not_mix_two_tables(checkpoint, checkpoint_maker, tmp_path, monkeypatch, change):
    segments_of(monkeypatch, 100)

    def stop(progress):
        if progress.done_bytes >= 7 * 26400:
            raise Stop

    with pytest.raises(Stop):
        pack(checkpoint, tmp_path, progress=stop)
    other = checkpoint_maker(tmp_path / "c", seed=9) if change == "checkpoint" else checkpoint
    seen = []
    pack(
        other, tmp_path, revision="new" if change == "revision" else checkpoint.revision, progress=seen.append
    )
    assert not [p for p in seen if p.stage == "checking"]
    verify_rows(rows_path(tmp_path, 1, 0, 1), checkpoint=other.path)


def test_a_leftover_of_random_bytes_is_overwritten(checkpoint, tmp_path):
    path = rows_path(tmp_path, 1, 0, 1)
    path.with_name(path.name + ".tmp").write_bytes(random.Random(1).randbytes(3_000_000))
    pack(checkpoint, tmp_path)
    verify_rows(path, checkpoint=checkpoint.path)


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "fdatasync", "fsync"])
def test_no_space_left_leaves_nothing_behind(checkpoint, tmp_path, monkeypatch, call):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(packer.os, call, full)
    with pytest.raises(RowStoreError, match=r"no space left for .*it needs 0\.00 GiB.*pack\.directory"):
        pack(checkpoint, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_packs_of_one_file_do_not_run_at_once(checkpoint, tmp_path):
    refused = []

    def again(_):
        if not refused:
            with pytest.raises(RowFileRefused, match="being written by another process") as error:
                pack(checkpoint, tmp_path)
            refused.append(error)

    pack(checkpoint, tmp_path, progress=again)
    assert refused


# ---- checkpoints that are not what they should be ----------------------------------------------------------


@pytest.fixture
def broken(checkpoint_maker, tmp_path):
    made = checkpoint_maker(tmp_path / "checkpoint")
    out = tmp_path / "out"

    def refuses(sentence):
        with pytest.raises(RowFileRefused, match=sentence):
            pack(made, out)
        assert not out.exists() or not list(out.iterdir())

    return made.path, refuses


FILE = "model-00001-of-00002.safetensors"


def test_pack_refuses_a_missing_config(broken):
    path, refuses = broken
    (path / "config.json").unlink()
    refuses(r"config\.json does not exist .*Fetch this file again with the publisher's tool")


def test_pack_refuses_a_missing_checkpoint_file(broken):
    path, refuses = broken
    (path / FILE).unlink()
    refuses(rf"{FILE} does not exist")


def test_pack_refuses_a_checkpoint_file_cut_short(broken):
    path, refuses = broken
    raw = (path / FILE).read_bytes()
    (path / FILE).write_bytes(raw[:-1])
    refuses(r"is cut short: `layers.1.engram.embed.scale` ends at byte")
    (path / FILE).write_bytes(raw[:20])
    refuses(r"is cut short inside its header")
    (path / FILE).write_bytes(b"")
    refuses(r"is cut short inside its header")


def test_pack_refuses_a_missing_index_and_a_missing_tensor(broken):
    path, refuses = broken
    index = path / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"].pop("layers.1.engram.embed.scale")
    index.write_text(json.dumps(document))
    refuses("names 0 tensors `layers.1.engram.embed.scale`, expected 1")
    index.write_text("{}")
    refuses("has no weight_map")
    index.unlink()
    refuses(r"index\.json does not exist")


def test_pack_refuses_a_table_of_another_shape(broken):
    path, refuses = broken
    raw = (path / FILE).read_bytes()
    (path / FILE).write_bytes(raw.replace(b'"F8_E4M3"', b'"BF16"   ', 1))
    refuses(r"is BF16 \[\d+, 256\], expected F8_E4M3 \[\d+, 256\]")


def test_pack_refuses_a_layer_without_a_table(checkpoint, tmp_path):
    with pytest.raises(RowFileRefused, match=r"layer 3 has no Engram table.*\[1, 14\]"):
        pack(checkpoint, tmp_path, layer=3)


def test_pack_says_when_the_directory_cannot_be_made(checkpoint, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RowStoreError, match=r"cannot be written: .*Check pack\.directory"):
        pack(checkpoint, tmp_path / "file")


# ---- verification ------------------------------------------------------------------------------------------


def test_verify_names_the_damaged_segment(checkpoint, tmp_path, monkeypatch):
    segments_of(monkeypatch, 100)
    pack(checkpoint, tmp_path)
    path = rows_path(tmp_path, 1, 0, 1)
    with open(path, "r+b") as file:
        file.seek(4096 + 264 * 250)
        file.write(b"\0\0\0\0")
    with pytest.raises(StoreCorrupt, match=r"segment 2 of .* \(rows 200 to 299\) does not match"):
        verify_rows(path)
    with pytest.raises(StoreCorrupt):
        verify_rows(path, sample=10_000)


def test_verify_samples_as_asked(checkpoint, tmp_path, monkeypatch):
    segments_of(monkeypatch, 100)
    pack(checkpoint, tmp_path)
    seen = []
    verify_rows(
        rows_path(tmp_path, 1, 0, 1), sample=3, checkpoint=checkpoint.path, progress=lambda *p: seen.append(p)
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
