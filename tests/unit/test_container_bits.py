"""What must be equal on every rank, where the engine is an image: its digest before, and the libnccl that it mapped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dsv41_supervisor.fabric.roots import Roots
from dsv41_supervisor.fleet import bits
from dsv41_supervisor.settings import Settings, parse

from tests.harness.launch_golden import DIRECTORY
from tests.unit.test_container_settings import DIGEST, IMAGE

INSIDE = Path("/usr/lib/python3/nvidia/nccl/lib/libnccl.so.2")


def settings(**nccl: str) -> Settings:
    document = json.loads((DIRECTORY / "tp3.settings.json").read_text())
    del document["engine"]["python"]
    document["engine"]["container"] = {"image": IMAGE}
    document["engine"]["nccl"] |= nccl
    return parse(json.dumps(document))


def process(proc: Path, pid: int, version: str, path: Path = INSIDE) -> None:
    """A process of a container that has mapped a libnccl. Its root is its own: the same path is no file out here."""
    inside = proc / f"{pid}/root{path}"
    inside.parent.mkdir(parents=True)
    inside.write_bytes(b"\x7fELF NCCL version " + version.encode() + b"+cuda13.0")
    (proc / f"{pid}/maps").write_text(f"7f00-7f01 r-xp 00000000 00:2f 12 {path}\n")


def test_the_engine_is_the_digest() -> None:
    assert bits.engine(settings()) == DIGEST
    assert bits.planned(settings(), "spark1")["libnccl"] == f"in the image {DIGEST}"


def test_the_library_is_read_as_the_process_sees_it(tmp_path: Path) -> None:
    for pid in (7, 8):
        process(tmp_path, pid, "2.30.7")
    facts, wrong = bits.running(settings(), [7, 8], {}, Roots(proc=tmp_path))
    assert wrong is None
    assert facts["libnccl mapped"].startswith("2.30.7 ") and facts["libnccl mapped"].endswith(f" {INSIDE}")


def test_a_library_that_wedges_is_refused_when_it_is_seen(tmp_path: Path) -> None:
    process(tmp_path, 7, "2.30.4")
    _, wrong = bits.running(settings(), [7], {}, Roots(proc=tmp_path))
    assert wrong is not None and "it has mapped libnccl 2.30.4" in wrong and "which wedges: it hung in two" in wrong


def test_two_libraries_and_none_are_refused(tmp_path: Path) -> None:
    process(tmp_path, 7, "2.30.7")
    process(tmp_path, 8, "2.30.7", Path("/opt/nccl/libnccl.so.2"))
    (tmp_path / "9").mkdir()
    (tmp_path / "9/maps").write_text("")
    _, wrong = bits.running(settings(), [7, 8], {}, Roots(proc=tmp_path))
    assert wrong is not None and "mapped 2 different libnccl" in wrong
    _, wrong = bits.running(settings(), [9], {}, Roots(proc=tmp_path))
    assert wrong is not None and "none of its processes has mapped a libnccl" in wrong


def test_a_library_of_this_machine_is_compared_as_without_a_container(tmp_path: Path) -> None:
    library = tmp_path / "lib/libnccl.so.2"
    library.parent.mkdir()
    library.write_bytes(b"\x7fELF NCCL version 2.30.7+cuda13.0")
    chosen = settings(library=str(library))
    assert bits.planned(chosen, "spark1")["libnccl"].startswith("2.30.7 ")
    process(tmp_path / "proc", 7, "2.30.8", library)
    _, wrong = bits.running(chosen, [7], {}, Roots(proc=tmp_path / "proc"))
    assert wrong is not None and "it has mapped libnccl 2.30.8" in wrong and "expected 2.30.7" in wrong


@pytest.mark.parametrize("gone", ["root", "empty"])
def test_a_library_that_cannot_be_read_is_said(tmp_path: Path, gone: str) -> None:
    process(tmp_path, 7, "2.30.7")
    inside = tmp_path / f"7/root{INSIDE}"
    if gone == "root":
        inside.unlink()
    else:
        inside.write_bytes(b"")
    _, wrong = bits.running(settings(), [7], {}, Roots(proc=tmp_path))
    assert wrong is not None and f"its libnccl cannot be read: {INSIDE} of process 7" in wrong
