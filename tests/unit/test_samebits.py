"""A mixture of ranks is refused with both values named; each fact is read from what is really there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.fabric.roots import Roots
from dsv41_supervisor.fleet import bits
from dsv41_supervisor.fleet.samebits import differences, mixed
from dsv41_supervisor.settings import Settings, parse

from tests.unit.fleets import good


def test_equal_ranks_pass() -> None:
    same = {"settings hash": "a" * 64, "kernel": "6.17"}
    assert differences({"spark1": {"same": same}, "spark2": {"same": dict(same)}}) == []


def test_a_difference_names_the_values_and_their_nodes() -> None:
    statuses = {
        "spark1": {"same": {"settings hash": "a" * 64, "kernel": "6.17"}},
        "spark2": {"same": {"settings hash": "b" * 64, "kernel": "6.17"}},
        "spark3": {"same": {"settings hash": "a" * 64, "kernel": "6.17"}},
    }
    (refusal,) = differences(statuses)
    assert f"{'a' * 16} on spark1, spark3; {'b' * 16} on spark2." in refusal.what
    assert "settings hash" in refusal.what


def test_a_fact_that_one_rank_does_not_know_is_a_difference() -> None:
    (refusal,) = differences({"spark1": {"same": {"libnccl": "2.30"}}, "spark2": {"same": {}}})
    assert "unknown on spark2" in refusal.what


def test_only_what_is_tolerated_by_name_may_differ() -> None:
    statuses = {
        "spark1": {"same": {"kernel": "6.17.0-1031", "driver": "580.173.02", "engine": "a"}},
        "spark2": {"same": {"kernel": "6.17.0-1019", "driver": "595.84", "engine": "b"}},
    }
    named = [r.what.split(":")[0] for r in differences(statuses)]
    assert named == [f"the nodes do not agree on the {fact}" for fact in ("driver", "engine", "kernel")]
    (refusal,) = differences(statuses, tolerated=("kernel", "driver"))
    assert "the engine" in refusal.what
    assert set(mixed(statuses)) == {"kernel", "driver", "engine"}


def test_settings_tolerate_kernel_and_driver_and_nothing_else() -> None:
    document = good()
    document["supervisor"] = {"tolerated_differences": ["kernel", "driver"]}
    parse(json.dumps(document))
    document["supervisor"] = {"tolerated_differences": ["engine"]}
    with pytest.raises(Exception, match="tolerated_differences"):
        parse(json.dumps(document))


# -- what is read ------------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """An environment with one package and a libnccl; returns its Python."""
    site = tmp_path / "env/lib/python3.12/site-packages"
    (site / "sglang/srt").mkdir(parents=True)
    (site / "sglang/srt/model.py").write_text("x = 1\n")
    (site / "sglang-0.5.23.dist-info").mkdir()
    (site / "sglang-0.5.23.dist-info/RECORD").write_text("sglang/srt/model.py,sha256=abc,6\n")
    (site / "nvidia/nccl/lib").mkdir(parents=True)
    (site / "nvidia/nccl/lib/libnccl.so.2").write_bytes(b"\x7fELF" + b"\0" * 8192 + b"NCCL version 2.30.7+cuda13.2\0")
    (tmp_path / "env/bin").mkdir()
    python = tmp_path / "env/bin/python"
    python.symlink_to(sys.executable)
    return python


def settings(python: Path, **more: Any) -> Settings:
    document = good()
    document["engine"] |= {"python": str(python)} | more
    return parse(json.dumps(document))


def test_every_fact_of_the_issue_is_collected(engine: Path) -> None:
    assert set(bits.planned(settings(engine), "spark1")) == {
        "supervisor version", "supervisor closure", "settings hash", "adapters asked", "engine", "libnccl",
        "checkpoint revision", "packed rows", "SPS table", "kernel", "driver",
    }  # fmt: skip


def test_the_engine_is_its_store_path_or_what_is_installed(engine: Path) -> None:
    store = "/nix/store/0123456789abcdfghijklmnpqrsvwxyz-dsv41-engine-0.1.0"
    assert bits.engine(settings(Path(f"{store}/bin/python3"))) == store.removeprefix("/nix/store/")
    before = bits.engine(settings(engine))
    assert before == bits.engine(settings(engine))
    # A copy that lost a file, as an rsync with an exclude makes one: the installer's RECORD still names it.
    lost = next(engine.parent.parent.glob("lib/*/site-packages")) / "sglang/srt/model.py"
    lost.unlink()
    assert bits.engine(settings(engine)) != before


def test_libnccl_is_named_by_version_bytes_and_path(engine: Path) -> None:
    first = bits.planned(settings(engine), "spark1")["libnccl"]
    assert first.startswith("2.30.7 ") and first.endswith("/nvidia/nccl/lib/libnccl.so.2")


def test_an_sps_table_is_compared_by_its_bytes(tmp_path: Path, engine: Path) -> None:
    for node, text in (("spark1", "[1, 2]"), ("spark2", "[1, 3]")):
        (tmp_path / f"sps-{node}").write_text(text)
    asked = settings(engine, speculative={"sps_table": f"{tmp_path}/sps-{{node}}"})
    tables = {node: bits.planned(asked, node)["SPS table"] for node in ("spark1", "spark2", "spark3")}
    assert len(tables["spark1"]) == 64 and tables["spark1"] != tables["spark2"]
    assert tables["spark3"] == f"unreadable: {tmp_path}/sps-spark3: No such file or directory"


def test_the_driver_s_version_is_read_from_its_own_line(tmp_path: Path) -> None:
    roots = Roots(proc=tmp_path)
    assert bits.driver(roots) == "none"
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.100.01  Release Build  (x@y)  Mon Sep  1\nGCC\n"
    )
    assert bits.driver(roots) == "580.100.01"


HOLDS = """
import mmap, sys
files = [open(path) for path in sys.argv[1:]]
held = [mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ) for file in files]
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder():
    """Starts a process that maps the files given."""
    running: list[subprocess.Popen[bytes]] = []

    def hold(*paths: Path) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, *map(str, paths)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        running.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"mapped\n"
        return process.pid

    yield hold
    for process in running:
        process.communicate()


def on_gpu(python: Path) -> Settings:
    document = good()
    document["engine"] |= {"python": str(python), "device": "cuda"}
    document["adapters"] = {"tp_pad": {}}
    for node in document["fleet"]["nodes"].values():
        for name, rail in node["rails"].items():
            rail["rdma_device"] = f"roce-{name}"
    return parse(json.dumps(document))


def test_the_library_that_was_mapped_is_held_against_the_planned_one(engine: Path, tmp_path: Path, holder) -> None:
    ours = next(engine.parent.parent.glob("lib/*/site-packages/nvidia/nccl/lib/libnccl.so.2"))
    other = tmp_path / "system/libnccl.so.2"
    other.parent.mkdir()
    other.write_bytes(b"\x7fELF" + b"\0" * 8192 + b"NCCL version 2.28.9+cuda12.9\0")
    fleet = on_gpu(engine)
    facts, wrong = bits.running(fleet, [holder(ours)], {"engram_nvme": "engaged", "tp_pad": "armed"})
    assert wrong is None
    assert facts["libnccl mapped"].startswith("2.30.7 ")
    assert facts["adapters armed"] == "engram_nvme armed, tp_pad armed"
    facts, wrong = bits.running(fleet, [holder(other)], {})
    assert "it has mapped libnccl 2.28.9 " in str(wrong) and "expected 2.30.7 " in str(wrong)
    facts, wrong = bits.running(fleet, [holder(ours), holder(other)], {})
    assert "2 different libnccl" in str(wrong)
    facts, wrong = bits.running(fleet, [os.getpid()], {})
    assert facts["libnccl mapped"] == "none" and "none of its processes has mapped a libnccl" in str(wrong)


def test_on_cpu_no_library_is_missed(engine: Path) -> None:
    assert bits.running(settings(engine), [os.getpid()], {}) == (
        {"adapters armed": "none", "libnccl mapped": "none"}, None,
    )  # fmt: skip


def test_packed_rows_are_compared_without_what_each_rank_has_for_itself(
    tmp_path: Path, demo_checkpoint: Path, demo_revision: str
) -> None:
    from dsv41_supervisor.pack import pack

    def packed(revision: str, where: str) -> dict[str, str]:
        document = good()
        document["checkpoint"] = {"path": str(demo_checkpoint), "revision": revision}
        document["pack"] = {"directory": f"{tmp_path}/{where}/{{node}}", "cache_bytes": 1 << 20}
        document["adapters"] = {"engram_nvme": {}}
        document["supervisor"] = {"run_dir": f"{tmp_path}/run-{where}-{{node}}"}
        fleet = parse(json.dumps(document))
        for node in ("spark1", "spark3"):
            pack(fleet, node)
        return {node: bits.packed_rows(fleet, node) for node in ("spark1", "spark2", "spark3")}

    first, second = packed(demo_revision, "a"), packed("f" * 12, "b")
    assert len(first["spark1"]) == 64 and first["spark1"] == first["spark3"]
    assert first["spark2"] == "not packed"
    assert second["spark1"] != first["spark1"]
