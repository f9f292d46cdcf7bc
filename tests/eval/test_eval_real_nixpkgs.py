"""The stand-in against real nixpkgs, which DSV41_NIXPKGS names: the same machines through NixOS's own modules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from nix_runner import HERE, REPOSITORY, Nix
from test_eval_rendered import masked

# NixOS gives every service these; our units set none of them.
OWN = ("Environment=\"PATH=", "Environment=\"TZDIR=", "Environment=\"LOCALE_ARCHIVE=")  # fmt: skip
COMPARED = (".service", ".timer", ".network", "exports", "input.nft")


@pytest.fixture
def nixpkgs() -> Path:
    named = os.environ.get("DSV41_NIXPKGS")
    if not named:
        pytest.skip("DSV41_NIXPKGS does not name a nixpkgs tree (lib, nixos and default.nix)")
    return Path(named)


def scope(nix: Nix, nixpkgs: Path) -> str:
    """`real` is nixpkgs' lib, `nixos node modules` the configuration that NixOS makes of them and of ours."""
    return f"""
      let
        real = import {nixpkgs}/lib;
        fake = name: derivation {{ inherit name; system = "x86_64-linux"; builder = "/bin/sh"; }};
        pkgs = import {nixpkgs} {{ system = "x86_64-linux"; }};
        # Younger than some trees that can be had.
        hasPreSwitchChecks = builtins.pathExists {nixpkgs}/nixos/modules/system/activation/pre-switch-check.nix;
        nixos = node: modules: (import {nixpkgs}/nixos/lib/eval-config.nix {{
          lib = real;
          system = null;
          modules = modules ++ [
            {{ nixpkgs.pkgs = pkgs; }}
            {nix.source}/modules
            {{
              options = real.optionalAttrs (!hasPreSwitchChecks) {{
                system.preSwitchChecks = real.mkOption {{ type = real.types.attrsOf real.types.lines; }};
              }};
              config.networking.hostName = node;
              config.services.dsv41.enginePackage = fake "python3-3.12-env";
              config.services.dsv41.package =
                fake "python3.12-dsv41-supervisor-0.1.0" // {{ meta.mainProgram = "dsv41"; }};
            }}
          ];
        }}).config;
      in
    """


def lines(text: str) -> list[str]:
    return sorted(line for line in masked(text).splitlines() if line and not line.startswith(OWN))


@pytest.mark.parametrize("machine", sorted(path.name for path in (HERE / "golden").iterdir()))
def test_nixos_renders_what_the_stand_in_renders(nix: Nix, nixpkgs: Path, machine: str) -> None:
    fleet, _, node = machine.rpartition("-")
    found = nix.value(
        f"""
          {scope(nix, nixpkgs)}
          let
            c = nixos "{node}" [ {REPOSITORY}/tests/fleets/{fleet}.nix machine ];
            ours = real.filterAttrs (name: _: real.hasInfix "dsv41" name);
          in {{
            failed = map (a: a.message) (builtins.filter (a: !a.assertion) c.assertions);
            files = builtins.mapAttrs (_: u: u.text) (ours c.systemd.units // ours c.systemd.network.units) // {{
              exports = c.services.nfs.server.exports;
              "input.nft" = c.networking.firewall.extraInputRules;
            }};
          }}
        """
    )
    assert found["failed"] == []
    golden = {p.name: p.read_text() for p in (HERE / "golden" / machine).iterdir() if p.name.endswith(COMPARED)}
    for name, text in golden.items():
        assert lines(found["files"][name]) == lines(text), name


def test_nixos_takes_the_image_and_calls_its_file_as_the_readme_does(nix: Nix, nixpkgs: Path) -> None:
    """To the derivation of its builder; the system that it would hold is a name, because that takes all of nixpkgs."""
    image = nix.value(
        f"""
          {scope(nix, nixpkgs)}
          let
            fleet = {{ fleet, modules }}: {{
              spark1 =
                let
                  c = nixos "spark1" ([ fleet ] ++ modules);
                  failed = map (a: a.message) (builtins.filter (a: !a.assertion) c.assertions);
                  toplevel = if failed == [ ] then fake "toplevel" else throw (toString failed);
                in
                {{
                  inherit pkgs;
                  config = c // {{ system = c.system // {{ build = c.system.build // {{ inherit toplevel; }}; }}; }};
                }};
            }};
            image = import {nix.source}/nix/image.nix {{
              self = {{
                nixosModules = {{ spark-hardware = {{ }}; image-disk = {nix.source}/nix/image-disk.nix; }};
                lib = {{ inherit fleet; }};
              }};
              nixpkgs = {{ outPath = "{nixpkgs}"; lib = real; }};
            }};
            made = image {{ fleet = {REPOSITORY}/tests/fleets/triangle-3.nix; node = "spark1"; }};
          in {{ inherit (made) drvPath preVM postVM; }}
        """
    )
    assert image["drvPath"].endswith("-dsv41-image-spark1.drv")
    assert "mv $diskImage $out/nixos.img" in image["postVM"]
    assert "--no-channel-copy" in image["preVM"]
    assert "dd if=result/nixos.img of=" in (REPOSITORY / "README.md").read_text()
