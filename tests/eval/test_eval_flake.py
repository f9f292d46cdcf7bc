"""The flake as a whole: every file parses, every output evaluates, and it says what it exposes."""

from __future__ import annotations

import json

import pytest
from nix_runner import REPOSITORY, Nix

SYSTEMS = ("aarch64-linux", "x86_64-linux")


def nix_files() -> list[str]:
    places = ("flake.nix", "tests/vm", "nix", "modules", "tests/fleets", "tests/eval/shim")
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
        system: ["adapters", "default", "engine", "image", "oci", "rowstore", "supervisor"] for system in SYSTEMS
    }


def test_flake_shows_what_people_use_by_name(nix: Nix) -> None:
    done = nix.flake(["flake", "show", "path:."], "--json", "--all-systems")
    shown = json.loads(done.stdout)
    assert sorted(shown["nixosModules"]) == ["default", "image-disk", "modules", "spark-hardware"]
    assert sorted(shown["nixosConfigurations"]) == sorted(
        f"{fleet}-spark{n}" for fleet, size in (("triangle-3", 3), ("switched-4", 4), ("ring-4", 4))
        for n in range(1, size + 1)
    )  # fmt: skip
    assert shown["overlays"] == {"default": {"type": "nixpkgs-overlay"}}
    for system in SYSTEMS:
        assert sorted(shown["apps"][system]) == ["demo", "doctor"]
        assert {"supervisor", "adapters", "rowstore", "settings-schema", "adapters-fit"} <= set(shown["checks"][system])
        assert "default" in shown["devShells"][system]
        assert shown["formatter"][system]["type"] == "derivation"


def test_image_holds_one_nodes_whole_system_and_oci_the_engine(nix: Nix) -> None:
    """What they are made of, from their derivations: nothing is built."""
    made = nix.value(
        """
          let p = flake.packages.x86_64-linux; in {
            image = p.image.system;
            oci = { contents = map toString p.oci.contents; inherit (p.oci) config; };
            engine = toString flake.packages.aarch64-linux.engine;
          }
        """
    )
    assert made["image"].endswith("-nixos-system-spark1")
    assert made["engine"] in made["oci"]["contents"]
    assert json.loads(made["oci"]["config"])["Entrypoint"] == [f"{made['engine']}/bin/python3"]


def test_image_of_a_node_that_is_not_there_names_those_that_are(nix: Nix) -> None:
    fleet = REPOSITORY / "tests/fleets/triangle-3.nix"
    message = nix.refusal(f'(flake.lib.image {{ fleet = {fleet}; node = "spark9"; }}).drvPath')
    assert "spark9 is not a node of the fleet (spark1, spark2, spark3). Name one of them." in message


def test_hardware_module_is_optional_and_turns_the_spark_on(nix: Nix) -> None:
    system = "(lib.nixosSystem { modules = [ flake.nixosModules.spark-hardware machine ]; })"
    assert nix.value(f"{system}.config.hardware.dgx-spark.enable") is True


@pytest.mark.parametrize("name", sorted(p.stem for p in (REPOSITORY / "tests/vm").glob("*.nix")))
def test_vm_test_is_a_check_of_both_systems_and_its_script_is_python(nix: Nix, name: str) -> None:
    checks = nix.value(
        f"builtins.mapAttrs (_: checks: let c = checks.vm-{name}; in "
        "{ inherit (c) drvPath testScript; n = builtins.length c.systems; }) flake.checks"
    )
    assert set(checks) == set(SYSTEMS)
    assert all(check["n"] == 3 for check in checks.values())
    compile(checks[SYSTEMS[0]]["testScript"], name, "exec")


def test_vm_test_reads_the_demo_checkpoint_that_is_made_today(demo_revision: str) -> None:
    assert f'revision = "{demo_revision}"' in (REPOSITORY / "tests/vm/three-nodes.nix").read_text()


def test_the_lock_is_not_touched(nix: Nix) -> None:
    assert (nix.source / "flake.lock").read_bytes() == (REPOSITORY / "flake.lock").read_bytes()


@pytest.mark.parametrize("name", ["supervisor", "adapters", "rowstore"])
def test_package_asks_for_nothing_that_the_stand_in_lacks(nix: Nix, name: str) -> None:
    done = nix.flake(["eval", "--raw", f"path:.#packages.aarch64-linux.{name}.drvPath"])
    assert done.returncode == 0, done.stderr
    assert f"dsv41-{name}-0.1.0.drv" in done.stdout
