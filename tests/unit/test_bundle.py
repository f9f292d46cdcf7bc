"""Bundles stay within their bounds, are whole or not there, and a full disk is named."""

from __future__ import annotations

import errno
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from dsv41_supervisor.incident import bundle
from hypothesis import given
from hypothesis import strategies as st

MAX = 65536


@given(st.dictionaries(st.text("abc/._", min_size=1, max_size=12), st.integers(0, 300_000), max_size=12))
def test_parts_fit_the_bound_and_none_is_lost(sizes: dict[str, int]) -> None:
    fitted = bundle.fit({name: "x" * size for name, size in sizes.items()}, MAX)
    assert list(fitted) == list(sizes)
    assert sum(map(len, fitted.values())) <= MAX
    for name, size in sizes.items():
        assert len(fitted[name]) == size or b"bytes cut" in fitted[name]


def test_a_long_part_keeps_its_beginning_and_its_end() -> None:
    fitted = bundle.fit({"log": "first\n" + "x" * 500_000 + "\nlast", "small": "whole"}, MAX)
    text = fitted["log"].decode()
    assert text.startswith("first") and text.endswith("last") and "bytes cut to keep the bundle small" in text
    assert fitted["small"] == b"whole"


def test_what_is_written_can_be_listed_and_read(tmp_path: Path) -> None:
    name = bundle.bundle_name("lost", 1_795_000_000.0, "20261130T021200-4F1C9A2E")
    assert name == "20261118T110640Z-lost-20261130t021200-4f1c9a2e"
    path = bundle.write(tmp_path / "incidents", name, {"incident.json": "{}", "spark1/rank.log": "ä\n"}, MAX, 5)
    assert path.stat().st_mode & 0o007 == 0
    assert [e.name for e in bundle.entries(path.parent)] == [name]
    assert bundle.listing(path.parent, name) == {"incident.json": 2, "spark1/rank.log": 3}
    assert bundle.read(path.parent, name, "spark1/rank.log") == "ä\n"


@pytest.mark.parametrize("name", ["../fleet", "20261118T112640Z-../../x", "", "20261118T112640Z-lost.tar.gz"])
def test_a_name_that_no_bundle_has_reaches_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no bundle's name"):
        bundle.listing(tmp_path, name)


def test_the_oldest_go_first(tmp_path: Path) -> None:
    names = [bundle.bundle_name("lost", 1_795_000_000.0 + i, None) for i in range(6)]
    for name in names:
        bundle.write(tmp_path, name, {"a": "b"}, MAX, 3)
    assert [e.name for e in bundle.entries(tmp_path)] == names[-3:]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "dsv41-test", str(mounted)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def test_old_bundles_make_room_on_a_full_disk(small_disk: Path) -> None:
    noise = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=300_000))
    first, second = (bundle.bundle_name("lost", 1_795_000_000.0 + i, None) for i in range(2))
    bundle.write(small_disk, first, {"a": noise}, 1 << 20, 10)
    bundle.write(small_disk, second, {"a": noise[::-1]}, 1 << 20, 10)
    assert [e.name for e in bundle.entries(small_disk)] == [second]


def test_a_disk_full_of_other_things_is_named_and_nothing_half_written_stays(small_disk: Path) -> None:
    other = os.open(small_disk / "other", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="No space left"):
        while True:
            os.write(other, b"x" * 4096)
    os.close(other)
    with pytest.raises(OSError, match="No space left") as full:
        bundle.write(small_disk, bundle.bundle_name("lost", 1_795_000_000.0, None), {"a": "b" * 9999}, MAX, 10)
    assert full.value.errno == errno.ENOSPC
    assert [path.name for path in small_disk.iterdir()] == ["other"]
