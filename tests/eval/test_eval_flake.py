"""The flake as a whole: every file parses, every output evaluates, and it says what it exposes."""

from __future__ import annotations

import json

import pytest
from nix_runner import REPOSITORY, Nix

SYSTEMS = ("aarch64-linux", "x86_64-linux")


def nix_files() -> list[str]:
    places = ("flake.nix", "nix", "modules", "tests/fleets", "tests/eval/shim")
    return sorted(
        str(path.relative_to(REPOSITORY))
        for place in places
        for path in ([REPOSITORY / place] if place.endswith(".nix") else (REPOSITORY / place).rglob("*.nix"))
    )


def test_every_nix_file_parses(nix: Nix) -> None:
    done = nix.run("nix-instantiate", "--parse", *(str(REPOSITORY / name) for name in nix_files()))
    assert done.returncode == 0, done.stderr


def test_flake_check_evaluates_every_output_on_both_systems(nix: Nix) -> None:
    done = nix.flake(["flake", "check", "path:."], "--all-systems", "--no-build")
    assert done.returncode == 0, done.stderr
    for name in ("triangle-3-spark1", "switched-4-spark4"):
        assert f"nixosConfigurations.{name}" in done.stderr


def test_flake_show_lists_the_packages_of_both_systems(nix: Nix) -> None:
    done = nix.flake(["flake", "show", "path:."], "--json", "--all-systems")
    assert done.returncode == 0, done.stderr
    packages = json.loads(done.stdout)["packages"]
    assert {system: sorted(names) for system, names in packages.items()} == {
        system: ["adapters", "default", "engine", "rowstore", "supervisor"] for system in SYSTEMS
    }


def test_the_lock_is_not_touched(nix: Nix) -> None:
    assert (nix.source / "flake.lock").read_bytes() == (REPOSITORY / "flake.lock").read_bytes()


@pytest.mark.parametrize("name", ["supervisor", "adapters", "rowstore"])
def test_package_asks_for_nothing_that_the_stand_in_lacks(nix: Nix, name: str) -> None:
    done = nix.flake(["eval", "--raw", f"path:.#packages.aarch64-linux.{name}.drvPath"])
    assert done.returncode == 0, done.stderr
    assert f"dsv41-{name}-0.1.0.drv" in done.stdout
