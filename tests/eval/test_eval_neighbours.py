"""Hardware addresses in the fleet file become permanent neighbour entries of the peers, and nothing else does."""

from __future__ import annotations

from nix_runner import REPOSITORY, Nix

TRIANGLE = REPOSITORY / "tests/fleets/triangle-3.nix"
MAC = "3c:6d:66:0b:aa:01"


def networks(nix: Nix, node: str) -> dict[str, str]:
    return nix.value(f"""
      builtins.mapAttrs (_: unit: unit.text) (lib.nixosSystem {{
        modules = [
          flake.nixosModules.default
          machine
          {{
            imports = [ {TRIANGLE} ];
            networking.hostName = "{node}";
            services.dsv41.enable = true;
            services.dsv41.settings.fleet.nodes.spark1.rails.one-two.mac = "{MAC}";
          }}
        ];
      }}).config.systemd.network.units
    """)


def test_the_peer_on_that_rail_gets_the_entry_and_nobody_else(nix: Nix) -> None:
    found = networks(nix, "spark2")
    entry = f"[Neighbor]\nAddress=10.0.12.1\nLinkLayerAddress={MAC}\n"
    assert found["20-dsv41-one-two.network"].endswith("\n\n" + entry)
    assert [name for name, text in found.items() if "[Neighbor]" in text] == ["20-dsv41-one-two.network"]
    for other in ("spark1", "spark3"):
        assert not any("[Neighbor]" in text for text in networks(nix, other).values())
