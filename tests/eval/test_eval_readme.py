"""The way from bare Sparks in the README: its files are evaluated as they stand there, its names are the modules'."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from nix_runner import REPOSITORY, Nix

README = (REPOSITORY / "README.md").read_text()
TRIANGLE = REPOSITORY / "tests/fleets/triangle-3.nix"
NODES = ["spark1", "spark2", "spark3"]


def file(name: str) -> str:
    """A file that the README shows."""
    (text,) = re.findall(rf"```nix\n +# {re.escape(name)}\n(.*?)```", README, re.DOTALL)
    return text


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The three files of a reader who took the triangle."""
    for name in ("flake.nix", "machine.nix"):
        (tmp_path / name).write_text(file(name))
    (tmp_path / "fleet.nix").write_text(TRIANGLE.read_text())
    return tmp_path


def test_the_flake_is_three_systems_and_three_images(nix: Nix, written: Path) -> None:
    made = nix.value(
        f"""
          let mine = (import {written}/flake.nix).outputs {{ dsv41 = flake; }}; in {{
            systems = builtins.mapAttrs (_: s: {{
              inherit (s.config.networking) hostName interfaces;
              inherit (s.config.fileSystems."/") device;
              keys = s.config.users.users.root.openssh.authorizedKeys.keys;
              toplevel = s.config.system.build.toplevel.drvPath;
            }}) mine.nixosConfigurations;
            images = builtins.mapAttrs (_: i: i.drvPath) mine.packages.aarch64-linux;
          }}
        """
    )
    assert list(made["systems"]) == NODES
    assert list(made["images"]) == [f"image-{node}" for node in NODES]
    assert len(set(made["images"].values())) == 3
    for number, node in enumerate(NODES, start=1):
        system = made["systems"][node]
        assert system["hostName"] == node
        assert system["interfaces"]["enP7s7"]["ipv4"]["addresses"] == [
            {"address": f"10.0.0.{number}", "prefixLength": 24}
        ]
        assert system["device"] == "/dev/disk/by-label/nixos", "the disk that the image made"
        assert system["keys"] == ["ssh-ed25519 …"]


def test_what_is_switched_to_later_is_the_system_of_the_image(nix: Nix, written: Path) -> None:
    """So that the first `nixos-rebuild switch` changes nothing."""
    assert nix.value(
        f"""
          let mine = (import {written}/flake.nix).outputs {{ dsv41 = flake; }}; in
          toString mine.packages.aarch64-linux.image-spark2.system
          == "${{mine.nixosConfigurations.spark2.config.system.build.toplevel}}"
        """
    )


def test_keys_and_checkpoint_are_where_the_example_fleet_has_them(nix: Nix) -> None:
    settings = nix.value("flake.nixosConfigurations.triangle-3-spark1.config.services.dsv41.settings")
    for path in (settings["fleet"]["key_file"], settings["gateway"]["keys_file"]):
        assert f"umask 077; cat >{path}'" in README
    checkpoint = settings["checkpoint"]
    (repo, revision, where) = re.search(
        r"hf download (\S+) --revision ([0-9a-f]{40}) \\\s+--local-dir (\S+)", README
    ).groups()  # type: ignore[union-attr]
    assert (repo, where) == (checkpoint["repo"], checkpoint["path"])
    assert revision.startswith(checkpoint["revision"])


def test_keys_are_given_to_their_users_before_the_programs_look(nix: Nix) -> None:
    """As root wrote it, the gateway cannot read its file again: a new key would wait for the next boot."""
    rules = nix.value("flake.nixosConfigurations.triangle-3-spark1.config.systemd.tmpfiles.rules")
    assert "z /etc/dsv41/api-keys 0600 dsv41-gateway dsv41-gateway -" in rules
    written, given, restarted = (
        README.index(line)
        for line in ("cat >/etc/dsv41/api-keys'", "'systemd-tmpfiles --create; ", "systemctl restart dsv41-gateway")
    )
    assert written < given < restarted


def test_the_wheels_are_as_many_as_it_says() -> None:
    wheels = json.loads((REPOSITORY / "nix/wheels.lock.json").read_text())["wheels"]
    nvidias = [wheel for wheel in wheels if "NVIDIA" in wheel["licence"]]
    assert f"the {len(wheels)} wheels for aarch64" in README
    assert len(nvidias) == 18 and "(eighteen are NVIDIA's own" in README


def test_units_that_are_started_by_hand_are_on_the_machines(nix: Nix) -> None:
    section = README.partition("### From bare Sparks")[2].partition("\n## ")[0]
    named = set(re.findall(r"systemctl \w+ (dsv41-[a-z]+)", section))
    assert named == {"dsv41-supervisor", "dsv41-gateway", "dsv41-pack", "dsv41-rank"}
    units = nix.value("builtins.attrNames flake.nixosConfigurations.triangle-3-spark1.config.systemd.units")
    for name in named:
        assert {f"{name}.service", f"{name}@.service"} & set(units)


@pytest.mark.skipif("DSV41_NIXPKGS" not in os.environ, reason="DSV41_NIXPKGS does not name a nixpkgs tree")
def test_nixos_has_the_options_of_the_machine(nix: Nix, written: Path) -> None:
    from test_eval_real_nixpkgs import scope

    found = nix.value(
        f"""
          {scope(nix, Path(os.environ["DSV41_NIXPKGS"]))}
          let
            c = nixos "spark2" [ {TRIANGLE} {nix.source}/nix/image-disk.nix {written}/machine.nix ];
          in {{
            failed = map (a: a.message) (builtins.filter (a: !a.assertion) c.assertions);
            addresses = map (a: a.address) c.networking.interfaces.enP7s7.ipv4.addresses;
            inherit (c.fileSystems."/") device autoResize;
          }}
        """
    )
    assert found == {
        "failed": [],
        "addresses": ["10.0.0.2"],
        "device": "/dev/disk/by-label/nixos",
        "autoResize": True,
    }
