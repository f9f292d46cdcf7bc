"""The row store is built reproducibly: in a sandbox, twice the same bytes; two checkouts are one derivation."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from nix_runner import Nix

SITE = Path(sysconfig.get_path("purelib"))
BUILD_TIMEOUT_S = 280
SANDBOX = """\
sandbox = true
sandbox-paths = /bin=/usr/bin /usr /lib=/usr/lib /lib64=/usr/lib64 /etc/alternatives {python}
"""


def can_sandbox(work: Path) -> bool:
    done = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True)
    return done.returncode == 0 and Path("/usr/lib64").is_dir() and work.is_dir()


@pytest.fixture(scope="module")
def builder(nix: Nix, tmp_path_factory: pytest.TempPathFactory) -> Nix:
    """A Nix that may build, with a store of its own."""
    for tool in ("gcc", "unshare"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} to build with")
    work = tmp_path_factory.mktemp("builder")
    for directory in ("home", "cache", "etc"):
        (work / directory).mkdir()
    python = str(Path(sys.base_prefix).resolve())
    if not can_sandbox(work):
        pytest.skip("no namespaces here for Nix's sandbox")
    text = (nix.work / "etc/nix.conf").read_text() + SANDBOX.format(python=python)
    (work / "etc/nix.conf").write_text(text)
    return replace(nix, work=work)


def arguments(source: Path) -> list[str]:
    return [
        str(source / "nix/rowstore-raw.nix"),
        "--argstr", "python", str(Path(sys.base_prefix).resolve()),
        "--arg", "site", str(SITE),
    ]  # fmt: skip


def build(builder: Nix, *more: str) -> subprocess.CompletedProcess[str]:
    return builder.run(
        "nix-build", *arguments(builder.source), "--no-out-link", "--store", str(builder.work / "store"), *more,
        timeout_s=BUILD_TIMEOUT_S,
    )  # fmt: skip


def test_two_checkouts_are_one_derivation(nix: Nix, tmp_path: Path) -> None:
    other = tmp_path / "another checkout"
    shutil.copytree(nix.source, other)
    # What a checkout gathers while people work in it.
    (other / "rowstore/build").mkdir(exist_ok=True)
    (other / "rowstore/build/old.o").write_text("old")
    (other / "rowstore/dsv41_rowstore/store.c").write_text("old")
    paths = {
        nix.run("nix-instantiate", *arguments(source), "--store", str(tmp_path / "store")).stdout.splitlines()[-1]
        for source in (nix.source, other)
    }
    assert len(paths) == 1


def test_built_twice_it_is_the_same_and_it_imports(builder: Nix, tmp_path: Path) -> None:
    done = build(builder)
    assert done.returncode == 0, done.stderr[-3000:]
    again = build(builder, "--check")
    assert again.returncode == 0, again.stderr[-3000:]
    wheel = next((builder.work / "store" / done.stdout.strip().lstrip("/")).glob("*.whl"))
    shutil.unpack_archive(wheel, tmp_path, "zip")
    asked = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
         "from dsv41_rowstore import store; print(store.__file__)"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert asked.stdout.startswith(str(tmp_path)), asked.stderr
