"""What the modules render, against files that a person can read. DSV41_UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor import settings as settings_module
from nix_runner import HERE, REPOSITORY, Nix

GOLDEN = HERE / "golden"
MACHINES = ("triangle-3-spark1", "triangle-3-spark2", "triangle-3-spark3", "switched-4-spark1", "ring-4-spark1")

# Every file a machine gets from us, by name.
RENDERED = """
  builtins.mapAttrs (_: system:
    let c = system.config; in
    builtins.mapAttrs (_: unit: unit.text) (c.systemd.units // c.systemd.network.units)
    // {
      exports = c.services.nfs.server.exports;
      "tmpfiles.conf" = lib.concatMapStringsSep "" (rule: rule + "\\n") c.systemd.tmpfiles.rules;
      "pre-switch-check" = lib.concatStringsSep "" (builtins.attrValues c.system.preSwitchChecks);
      "polkit.rules" = c.security.polkit.extraConfig;
      "input.nft" = c.networking.firewall.extraInputRules;
      "sysctl.conf" = lib.concatStrings (lib.mapAttrsToList (name: value: "${name}=${toString value}\\n")
        c.boot.kernel.sysctl);
      fstab = lib.concatStringsSep "" (lib.mapAttrsToList (path: fs: lib.optionalString (path != "/")
        "${fs.device} ${path} ${fs.fsType} ${lib.concatStringsSep "," fs.options}\\n") c.fileSystems);
    }
  ) flake.nixosConfigurations
"""


Rendered = dict[str, dict[str, str]]
"""Text by file name, by machine."""


def masked(text: str) -> str:
    """Store hashes say nothing to a reader and change with every source file."""
    return re.sub(r"/nix/store/[0-9a-z]{32}-", "/nix/store/…-", text)


@pytest.fixture(scope="module")
def rendered(nix: Nix) -> Rendered:
    everything = nix.value(RENDERED)
    return {
        machine: {name: masked(text) for name, text in files.items() if text} for machine, files in everything.items()
    }


@pytest.mark.parametrize("machine", MACHINES)
def test_machine_is_rendered_as_in_the_golden_files(rendered: Rendered, machine: str) -> None:
    directory = GOLDEN / machine
    if os.environ.get("DSV41_UPDATE_GOLDEN") == "1":
        write(directory, rendered[machine])
    golden = {path.name: path.read_text() for path in sorted(directory.iterdir())}
    assert rendered[machine] == golden


def write(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    for name, text in files.items():
        (directory / name).write_text(text)


def test_rank_0_on_the_head_waits_for_readiness_and_is_restarted_by_nobody(
    rendered: Rendered,
) -> None:
    unit = rendered["triangle-3-spark1"]["dsv41-rank@.service"].splitlines()
    for line in (
        "Type=notify",
        "Restart=no",
        "TimeoutStartSec=infinity",
        "WatchdogSec=30",
        "X-RestartIfChanged=false",
        "LimitMEMLOCK=infinity",
        "OOMScoreAdjust=500",
        "LogExtraFields=DSV41_RANK=%i",
    ):
        assert line in unit
    command = next(line for line in unit if line.startswith("ExecStart="))
    assert re.search(r'/bin/dsv41" "rank" %i "--settings" "\S+-dsv41-settings.json" "--node" "spark1"', command)


def test_rank_keeps_the_devices_of_gpu_and_rdma(rendered: Rendered) -> None:
    # Each of these hides or denies devices; ProtectClock does so by the DeviceAllow it implies.
    for line in rendered["triangle-3-spark1"]["dsv41-rank@.service"].splitlines():
        assert line.partition("=")[0] not in {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock"}


def test_only_the_head_has_the_gateway_and_the_export(rendered: Rendered) -> None:
    has_gateway = {machine for machine, files in rendered.items() if "dsv41-gateway.service" in files}
    assert has_gateway == {"triangle-3-spark1", "switched-4-spark1", "ring-4-spark1"}
    assert {machine for machine, files in rendered.items() if "exports" in files} == {"triangle-3-spark1"}


def test_no_unit_of_a_machine_names_another_node(rendered: Rendered) -> None:
    unit = rendered["triangle-3-spark2"]["dsv41-supervisor.service"]
    assert '"--node" "spark2"' in unit
    assert "spark1" not in unit
    assert "spark3" not in unit


def settings_of(nix: Nix) -> dict[str, Any]:
    return nix.value(
        "builtins.mapAttrs (_: s: builtins.toJSON s.config.services.dsv41.settings) flake.nixosConfigurations"
    )


def test_a_certificate_reaches_the_gateway_as_a_credential(nix: Nix) -> None:
    text = nix.value(f"""
      (lib.nixosSystem {{
        modules = [
          flake.nixosModules.default
          machine
          {{
            imports = [ {REPOSITORY / "tests/fleets/triangle-3.nix"} ];
            networking.hostName = "spark1";
            services.dsv41.enable = true;
            services.dsv41.settings.gateway.tls = {{
              certificate = "/var/lib/acme/spark1/fullchain.pem";
              key_file = "/var/lib/acme/spark1/key.pem";
            }};
          }}
        ];
      }}).config.systemd.units."dsv41-gateway.service".text
    """)
    for line in (
        "LoadCredential=tls-certificate:/var/lib/acme/spark1/fullchain.pem",
        "LoadCredential=tls-key:/var/lib/acme/spark1/key.pem",
        "SetCredential=tls-certificate:-",
        "SetCredential=tls-key:-",
        "ExecReload=/bin/sh -c 'kill -HUP $MAINPID'",
    ):
        assert line in text.splitlines()


def test_the_program_accepts_the_settings_of_every_example(nix: Nix) -> None:
    everything = settings_of(nix)
    assert len(everything) == 11
    for machine, text in everything.items():
        settings = settings_module.parse(text, machine)
        assert settings.fleet.world_size == settings.engine.parallelism.tp_size


def test_all_machines_of_a_fleet_have_the_same_settings(nix: Nix) -> None:
    hashes: dict[str, set[str]] = {}
    for machine, text in settings_of(nix).items():
        fleet = machine.rpartition("-")[0]
        hashes.setdefault(fleet, set()).add(settings_module.parse(text, machine).hash)
    assert {fleet: len(each) for fleet, each in hashes.items()} == {"triangle-3": 1, "switched-4": 1, "ring-4": 1}


def test_a_profile_gives_defaults_and_the_fleet_file_wins(nix: Nix) -> None:
    def memory(change: str) -> dict[str, object]:
        return nix.value(
            f"""
              (flake.lib.fleet {{
                fleet = {{ imports = [ {REPOSITORY}/tests/fleets/switched-4.nix ]; {change} }};
                modules = [ machine ];
              }}).spark1.config.services.dsv41.settings.engine.memory
            """
        )

    assert memory("")["max_total_tokens"] == 8_000_000
    changed = memory("services.dsv41.settings.engine.memory.max_total_tokens = 1000000;")
    assert changed == memory("") | {"max_total_tokens": 1_000_000}


def test_options_have_the_defaults_of_the_program(nix: Nix) -> None:
    # What only the options fill in, against what only pydantic fills in.
    text = nix.value(
        """
          builtins.toJSON (flake.lib.fleet {
            fleet = { services.dsv41 = { enable = true; settings = {
              fleet = { name = "one"; topology = "switched"; key_file = "/k";
                nodes.a = { rank = 0; management_address = "10.0.0.1"; management_interface = "lan"; }; };
              checkpoint = { path = "/c"; revision = "0123456"; };
              engine = { python = "/p"; parallelism.tp_size = 1; };
            }; }; };
            modules = [ machine ];
          }).a.config.services.dsv41.settings
        """
    )
    by_nix = settings_module.parse(text)
    by_pydantic = settings_module.Settings.model_validate(
        {
            "fleet": {
                "name": "one",
                "topology": "switched",
                "key_file": "/k",
                "nodes": {
                    "a": {"rank": 0, "management_address": "10.0.0.1", "management_interface": "lan"},
                },
            },
            "checkpoint": {"path": "/c", "revision": "0123456"},
            "engine": {"python": "/p", "parallelism": {"tp_size": 1}},
        }
    )
    assert by_nix == by_pydantic
