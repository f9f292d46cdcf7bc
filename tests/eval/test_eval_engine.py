"""The engine's wheels: the lock is whole and right in itself, and becomes one derivation for each wheel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from nix_runner import REPOSITORY, Nix
from packaging.specifiers import SpecifierSet
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

LOCK = json.loads((REPOSITORY / "nix/wheels.lock.json").read_text())
LIBRARIES = json.loads((REPOSITORY / "nix/wheels.libraries.json").read_text())
WHEELS: dict[str, dict[str, Any]] = {wheel["name"]: wheel for wheel in LOCK["wheels"]}
NIXOS_GLIBC_MINOR = 42
"""Of nixos-26.05. A wheel built for a newer one would not load."""


def test_lock_is_complete() -> None:
    assert (LOCK["system"], LOCK["python"], LOCK["requirements"]) == ("aarch64-linux", "3.12", ["sglang==0.5.23"])
    assert len(LOCK["wheels"]) == len(WHEELS) == 208
    assert list(WHEELS) == sorted(WHEELS)
    asked = {"sglang"}.union(*(wheel["needs"] for wheel in WHEELS.values()))
    assert asked == set(WHEELS), "each is needed by one that is there, and nothing that is needed is missing"
    assert Counter(wheel["platform"] == "any" for wheel in WHEELS.values()) == {True: 109, False: 99}


def test_lock_has_what_sglang_asks_for_on_arm_and_not_what_it_asks_for_elsewhere() -> None:
    """Plain pip on x86-64 chooses 207 wheels: it takes this machine's markers, and torchcodec for the first two."""
    assert {"av", "decord2"} <= set(WHEELS["sglang"]["needs"])
    assert "torchcodec" not in WHEELS


def test_versions_are_those_that_the_design_names() -> None:
    pins = {"sglang": "0.5.23", "torch": "2.14.1", "triton": "3.8.0", "flashinfer-python": "0.7.2",
            "sglang-kernel": "0.4.10", "deepseek-recipe": "0.2.0", "nvidia-nccl-cu13": "2.30.7"}  # fmt: skip
    assert {name: WHEELS[name]["version"] for name in pins} == pins


def test_engine_on_cpu_has_the_same_sglang() -> None:
    text = (REPOSITORY / "demo/engine-cpu.txt").read_text()
    for name in ("sglang", "torch", "transformers", "deepseek-recipe"):
        assert f"\n{name}=={WHEELS[name]['version']}\n" in text


@pytest.mark.parametrize("name", WHEELS)
def test_wheel_is_what_its_file_name_says_and_runs_on_a_spark(name: str) -> None:
    wheel = WHEELS[name]
    in_name, version, _, tags = parse_wheel_filename(wheel["file"])
    assert (canonicalize_name(in_name), str(version)) == (name, wheel["version"])
    assert wheel["file"].endswith(f"-{wheel['python']}-{wheel['abi']}-{wheel['platform']}.whl"), "no sdist"
    assert re.fullmatch("[0-9a-f]{64}", wheel["sha256"])
    assert re.fullmatch("packages/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}", wheel["path"])
    assert tags & ON_A_SPARK, f"{wheel['file']} is not for CPython 3.12 on aarch64"
    assert wheel["licence"]


def spark_tags() -> frozenset[object]:
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in range(17, NIXOS_GLIBC_MINOR + 1)] + [
        "manylinux2014_aarch64"
    ]
    return frozenset([*cpython_tags((3, 12), platforms=platforms), *compatible_tags((3, 12), "cp312", platforms)])


ON_A_SPARK = spark_tags()


def test_no_two_wheels_are_one_file() -> None:
    for key in ("file", "sha256", "path"):
        assert len({wheel[key] for wheel in WHEELS.values()}) == len(WHEELS)


def test_no_host_is_named() -> None:
    for name in ("nix/wheels.lock.json", "nix/wheels.libraries.json"):
        assert "://" not in (REPOSITORY / name).read_text()


def test_libraries_are_those_of_binary_wheels_in_the_lock() -> None:
    for name, sources in LIBRARIES.items():
        assert WHEELS[name]["platform"] != "any"
        assert set(sources["wheels"]) <= set(WHEELS) - {name}
    assert "nvidia-cuda-cupti" in LIBRARIES["torch"]["wheels"], "the one that torch is built against, not triton's own"
    assert LIBRARIES["sglang-kernel"]["absent"] == ["libcuda.so.1"]


def test_our_requirements_hold_in_the_engine() -> None:
    import tomllib

    for distribution in ("adapters", "rowstore"):
        project = tomllib.loads((REPOSITORY / distribution / "pyproject.toml").read_text())["project"]
        for requirement in project["dependencies"]:
            name, specifier = re.fullmatch(r"([A-Za-z0-9._-]+)(.*)", requirement).groups()
            assert WHEELS[canonicalize_name(name)]["version"] in SpecifierSet(specifier)


def test_every_wheel_is_a_derivation_with_the_locks_hash(nix: Nix) -> None:
    built = nix.value("builtins.mapAttrs (_: w: w.drvPath) flake.packages.aarch64-linux.engine.wheels")
    assert built.keys() == WHEELS.keys()
    assert len(set(built.values())) == len(WHEELS)
    assert all(f"-{name}-{WHEELS[name]['version']}.drv" in path for name, path in built.items())


def test_both_systems_have_the_sparks_engine(nix: Nix) -> None:
    engines = nix.value("builtins.mapAttrs (_: p: p.engine.drvPath) flake.packages")
    assert len(set(engines.values())) == 1


def test_a_fleet_runs_the_flakes_engine_unless_it_says_otherwise(nix: Nix) -> None:
    pythons = nix.value(
        """
          builtins.mapAttrs (_: s: s.config.services.dsv41.settings.engine.python) flake.nixosConfigurations
          // { engine = "${flake.packages.aarch64-linux.engine}/bin/python3"; }
        """
    )
    assert set(pythons.values()) == {pythons["engine"]}


def with_lock(nix: Nix, tmp_path: Path, change: dict[str, Any]) -> str:
    """What Nix says to a library list with one wheel changed."""
    copy = tmp_path / "nix"
    subprocess.run(["cp", "-r", str(nix.source / "nix"), str(copy)], check=True)
    (copy / "wheels.libraries.json").write_text(json.dumps(LIBRARIES | change))
    return nix.refusal(
        f"""
          builtins.deepSeq (import {copy}/engine/libraries.nix {{
            inherit lib; stdenv.cc.cc.lib = "gcc"; zlib = "zlib"; rdma-core = "rdma-core";
          }} "torch") null
        """
    )


def test_a_library_that_nobody_brings_is_refused(nix: Nix, tmp_path: Path) -> None:
    change = {"torch": LIBRARIES["torch"] | {"absent": ["libcuda.so.1", "libnew.so.3"]}}
    assert "nothing brings libnew.so.3 for the wheel torch" in with_lock(nix, tmp_path, change)


def test_a_system_library_without_a_package_is_refused(nix: Nix, tmp_path: Path) -> None:
    change = {"torch": LIBRARIES["torch"] | {"system": ["libnew.so.3"]}}
    assert "no package for libnew.so.3 of the wheel torch" in with_lock(nix, tmp_path, change)


def lock_from(tmp_path: Path, install: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"install": install}))
    script = tmp_path / "tools/lock_wheels.py"
    script.parent.mkdir()
    (tmp_path / "nix").mkdir()
    # Only the file's own place decides where it writes; and what decides about pip is not asked about here.
    script.write_text((REPOSITORY / "tools/lock_wheels.py").read_text().replace("< 25:", "< 0:"))
    return subprocess.run(
        [sys.executable, str(script), "--report", str(report)], capture_output=True, text=True, timeout=60
    )


def reported(name: str, version: str = "1.0", requires: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    file = name.replace("-", "_")
    url = f"https://index.invalid/packages/aa/bb/{'c' * 60}/{file}-{version}-py3-none-any.whl"
    item = {
        "download_info": {"url": url, "archive_info": {"hashes": {"sha256": "d" * 64}}},
        "metadata": {"name": name, "version": version, "requires_dist": list(requires)},
    }
    item["download_info"] |= changes
    return item


SGLANG = reported("sglang", "0.5.23", ("a[x]>=1", 'w; sys_platform == "win32"'))
A = reported("a", requires=('only-on-spark; platform_machine == "aarch64" and extra == "x"',))


def test_lock_follows_extras_and_a_sparks_markers(tmp_path: Path) -> None:
    done = lock_from(tmp_path, [SGLANG, A, reported("only-on-spark")])
    assert done.returncode == 0, done.stderr
    lock = json.loads((tmp_path / "nix/wheels.lock.json").read_text())
    assert {w["name"]: w["needs"] for w in lock["wheels"]} == {
        "a": ["only-on-spark"],
        "only-on-spark": [],
        "sglang": ["a"],
    }
    assert lock["wheels"][0]["path"] == f"packages/aa/bb/{'c' * 60}"
    assert "index.invalid" not in (tmp_path / "nix/wheels.lock.json").read_text()


@pytest.mark.parametrize(
    ("install", "message"),
    [
        ([SGLANG, A], "a needs only-on-spark"),
        ([SGLANG, A, reported("only-on-spark"), reported("stray")], "pip chose stray, which nothing asks for"),
        ([reported("sglang", "0.5.22")], "needs sglang==0.5.23, but pip chose 0.5.22"),
        ([reported("sglang", "0.5.23", url=f"https://i.invalid/packages/aa/bb/{'c' * 60}/sglang.tar.gz")], "is no wheel"),  # noqa: E501
        ([reported("sglang", "0.5.23", archive_info={})], "has no SHA-256"),
        ([reported("sglang", "0.5.23", url="https://i.invalid/x/sglang-0.5.23-py3-none-any.whl")], "by their hash"),
    ],
    ids=["missing", "stray", "version", "sdist", "hash", "place"],
)  # fmt: skip
def test_lock_refuses_a_report_that_is_not_whole(tmp_path: Path, install: list[dict[str, Any]], message: str) -> None:
    done = lock_from(tmp_path, install)
    assert done.returncode == 78
    assert message in done.stderr
    assert not (tmp_path / "nix/wheels.lock.json").exists()
