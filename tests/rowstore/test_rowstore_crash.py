"""Packing that ends anywhere: kill -9, and power cuts that lose or tear whatever was not synced."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from dsv41_rowstore import (
    Partition,
    RowFileRefused,
    RowStoreError,
    StoreCorrupt,
    layout,
    pack_layer,
    packer,
    read_header,
    rows_path,
    verify_rows,
)

SECTOR = 512


class PowerCut(BaseException):
    pass


class Drive:
    """Stands for `os` in packer.py: knows what is durable, and can stop the machine before any call."""

    def __init__(self, stop_at: int, seed: int, existing) -> None:
        self.left, self.rng = stop_at, random.Random(seed)
        self.durable: dict[int, bytes] = {}  # inode → what a sync promised
        if existing.exists():
            self.durable[existing.stat().st_ino] = existing.read_bytes()
        self.pending: dict[int, list[tuple[int, bytes]]] = {}

    def __getattr__(self, name: str):
        return getattr(os, name)

    def step(self) -> None:
        if self.left == 0:
            raise PowerCut
        self.left -= 1

    def pwrite(self, fd, view, offset):
        self.step()
        raw = bytes(view)
        self.pending.setdefault(os.fstat(fd).st_ino, []).append((offset, raw))
        return os.pwrite(fd, raw, offset)

    def _sync(self, fd):
        self.step()
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            self.durable[found.st_ino] = os.pread(fd, found.st_size, 0)
            self.pending[found.st_ino] = []

    fsync = fdatasync = _sync

    def ftruncate(self, fd, size):
        self.step()
        os.ftruncate(fd, size)
        self.durable.pop(os.fstat(fd).st_ino, None)
        self.pending[os.fstat(fd).st_ino] = []

    def posix_fallocate(self, fd, offset, size):
        self.step()
        os.posix_fallocate(fd, offset, size)

    def rename(self, old, new):
        self.step()
        assert not self.pending.get(os.stat(old).st_ino), "renamed before it was synced"
        os.rename(old, new)

    def after_power_returns(self, path) -> None:
        """The file holds what was synced, and of each later write any sectors or none."""
        if not path.exists():
            return
        inode, size = path.stat().st_ino, path.stat().st_size
        image = bytearray(self.durable.get(inode, b"").ljust(size, b"\0")[:size])
        for offset, raw in self.pending.get(inode, []):
            for at in range(0, len(raw), SECTOR):
                if self.rng.random() < 0.5:
                    piece = raw[at : at + SECTOR]
                    image[offset + at : offset + at + len(piece)] = piece
        path.write_bytes(image)


def small_segments(monkeypatch):
    for module in (packer, layout):
        monkeypatch.setattr(module, "SEGMENT_ROWS", 300)
    monkeypatch.setattr(packer, "SEGMENT_BYTES", 300 * 264)
    monkeypatch.setattr(packer, "CHECKPOINT_SEGMENTS", 2)


def verify_whole(file, checkpoint):
    try:
        verify_rows(file, checkpoint=checkpoint and checkpoint.path)
    except RowStoreError as error:
        raise AssertionError(f"trusted by its header, but: {error}") from error


@pytest.fixture
def fast_dir(tmp_path):
    """In memory where there is some: durability is played here, the real syncs only cost time."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory)


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 8))])
def test_no_power_cut_leaves_a_file_that_is_trusted_and_wrong(checkpoint, fast_dir, monkeypatch, seed):
    tmp_path = fast_dir
    small_segments(monkeypatch)
    stop_at, finished, carried_on = 0, False, 0
    while not finished:
        out = tmp_path / str(stop_at)
        path = rows_path(out, 1, 0, 1)
        tmp = path.with_name(path.name + ".tmp")
        for stop in (stop_at, stop_at // 2, None):  # two cuts in a row, then a run to the end
            drive = Drive(-1 if stop is None else stop, seed, tmp)
            monkeypatch.setattr(packer, "os", drive)
            seen = []
            try:
                pack_layer(
                    checkpoint.path, out, layer=1, rank=0, world_size=1, partition=Partition.BALANCED,
                    revision=checkpoint.revision, progress=seen.append,
                )  # fmt: skip
                finished = finished or stop == stop_at
            except PowerCut:
                drive.after_power_returns(tmp)
            monkeypatch.setattr(packer, "os", os)
            carried_on += any(p.stage == "checking" for p in seen)
            for file in (tmp, path):  # a cut just before the rename leaves a whole file under the other name
                with contextlib.suppress(RowFileRefused, StoreCorrupt, FileNotFoundError):
                    read_header(file)
                    verify_whole(file, None)
        verify_whole(path, checkpoint if stop_at % 8 == 0 else None)
        assert path.exists() and not tmp.exists()
        stop_at += 1
    assert stop_at > 15 and carried_on > 5


CHILD = """
import sys
from pathlib import Path
from dsv41_rowstore import Partition, pack_layer, packer
packer.CHECKPOINT_SEGMENTS = 1
print("go", flush=True)
pack_layer(sys.argv[1], sys.argv[2], layer=1, rank=0, world_size=1, partition=Partition.BALANCED, revision="r")
"""


@pytest.fixture(scope="module")
def larger(checkpoint_maker, tmp_path_factory):
    """Five segments: 300 thousand rows, 80 MB."""
    return checkpoint_maker(tmp_path_factory.mktemp("larger"), vocab=12_000, layers=(1,))


@pytest.mark.parametrize("times", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_a_killed_pack_never_leaves_a_file_that_is_trusted_and_wrong(larger, tmp_path, times):
    path = rows_path(tmp_path, 1, 0, 1)
    tmp = path.with_name(path.name + ".tmp")
    rng, whole_s, killed, carried_on = random.Random(times), 1.0, 0, 0
    while killed < times:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(larger.path), str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == "go\n"
        begun = time.monotonic()
        try:
            child.wait(rng.random() * whole_s)
            assert child.returncode == 0
            whole_s = time.monotonic() - begun
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait(30)
            killed += 1
        child.stdout.close()
        if tmp.exists():
            with open(tmp, "rb") as file:
                carried_on += file.read(8) == layout.MAGIC_UNFINISHED
            with contextlib.suppress(RowFileRefused, StoreCorrupt):
                read_header(tmp)
                verify_whole(tmp, larger)
        if path.exists():
            verify_rows(path, sample=None if times > 10 else 2, checkpoint=larger.path)
            path.unlink()
    pack_layer(
        larger.path, tmp_path, layer=1, rank=0, world_size=1, partition=Partition.BALANCED, revision="r"
    )  # fmt: skip
    verify_rows(path, checkpoint=larger.path)
    assert not tmp.exists() and (carried_on or times < 10)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_drive_leaves_nothing_and_says_how_much_is_missing(larger, tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m", "none", str(mount)], capture_output=True
    ).returncode:
        pytest.skip("cannot mount a tmpfs")
    try:
        with pytest.raises(
            RowStoreError, match=r"no space left for .*it needs 0\.07 GiB, .* has 0\.0\d GiB free"
        ):
            pack_layer(
                larger.path, mount, layer=1, rank=0, world_size=1, partition=Partition.BALANCED, revision="r"
            )
        assert list(mount.iterdir()) == []
        with pytest.raises(RowFileRefused):
            read_header(rows_path(mount, 1, 0, 1))
    finally:
        subprocess.run(["umount", str(mount)], check=True)
