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


def lines(text: str) -> list[str]:
    return sorted(line for line in masked(text).splitlines() if line and not line.startswith(OWN))


@pytest.mark.parametrize("machine", sorted(path.name for path in (HERE / "golden").iterdir()))
def test_nixos_renders_what_the_stand_in_renders(nix: Nix, nixpkgs: Path, machine: str) -> None:
    fleet, _, node = machine.rpartition("-")
    found = nix.value(
        f"""
          let
            real = import {nixpkgs}/lib;
            fake = name: derivation {{ inherit name; system = "x86_64-linux"; builder = "/bin/sh"; }};
            c = (import {nixpkgs}/nixos/lib/eval-config.nix {{
              lib = real;
              system = null;
              modules = [
                {{ nixpkgs.pkgs = import {nixpkgs} {{ system = "x86_64-linux"; }}; }}
                {nix.source}/modules {REPOSITORY}/tests/fleets/{fleet}.nix machine
                {{
                  # Younger than some trees that can be had.
                  options = real.optionalAttrs (real.versionOlder real.trivial.release "25.05") {{
                    system.preSwitchChecks = real.mkOption {{ type = real.types.attrsOf real.types.lines; }};
                  }};
                  config.networking.hostName = "{node}";
                  config.services.dsv41.enginePackage = fake "python3-3.12-env";
                  config.services.dsv41.package =
                    fake "python3.12-dsv41-supervisor-0.1.0" // {{ meta.mainProgram = "dsv41"; }};
                }}
              ];
            }}).config;
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
