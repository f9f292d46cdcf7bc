"""Mistakes in a fleet file that `nixos-rebuild` refuses, each with the sentence that the operator reads."""

from __future__ import annotations

import pytest
from nix_runner import REPOSITORY, Nix

TRIANGLE = REPOSITORY / "tests/fleets/triangle-3.nix"
SWITCHED = REPOSITORY / "tests/fleets/switched-4.nix"

# name → (fleet, what is changed in it, what the message says); `set` is settings, `machine` all else.
MISTAKES: dict[str, tuple[object, str, str]] = {
    "duplicate_rank": (
        TRIANGLE,
        "set.fleet.nodes.spark3.rank = lib.mkForce 1;",
        "services.dsv41.settings.fleet.nodes.*.rank are 0, 1, 1, expected 0, 1, 2. "
        "Give each node its own rank, from 0 and without gaps; rank 0 is the head.",
    ),
    "gap_in_the_ranks": (
        TRIANGLE,
        "set.fleet.nodes.spark3.rank = lib.mkForce 3;",
        "fleet.nodes.*.rank are 0, 1, 3, expected 0, 1, 2.",
    ),
    "rank_out_of_range": (
        TRIANGLE,
        "set.fleet.nodes.spark3.rank = lib.mkForce 64;",
        "A definition for option `services.dsv41.settings.fleet.nodes.spark3.rank' is not of type "
        "`integer of at least 0, at most 63'",
    ),
    "misspelt_option": (
        TRIANGLE,
        "set.engine.memory.mem_fraction_statik = 0.7;",
        "The option `services.dsv41.settings.engine.memory.mem_fraction_statik' does not exist.",
    ),
    "misspelt_node_option": (
        TRIANGLE,
        "set.fleet.nodes.spark1.rails.one-two.gid_index = 3;",
        "The option `services.dsv41.settings.fleet.nodes.spark1.rails.one-two.gid_index' does not exist.",
    ),
    "address_without_prefix_length": (
        TRIANGLE,
        'set.fleet.nodes.spark1.rails.one-two.address = lib.mkForce "10.0.12.1";',
        "is not of type `string, an IPv4 address with prefix length, such as 10.0.12.1/24'",
    ),
    "node_name_with_capitals": (
        TRIANGLE,
        "set.fleet.nodes.Spark4 = { rank = 3; };",
        "services.dsv41.settings.fleet.nodes has the name Spark4, expected names that match ^[a-z][a-z0-9-]{0,30}$.",
    ),
    "no_nodes": (
        None,
        'set.fleet = { name = "none"; topology = "switched"; key_file = "/k"; };',
        "services.dsv41.settings.fleet.nodes has 0 entries, expected at least 1.",
    ),
    "key_in_the_store": (
        TRIANGLE,
        'set.fleet.key_file = lib.mkForce "${builtins.storeDir}/abc-fleet-key";',
        "is not of type `string, matching ^/, outside the Nix store, because it holds a secret'",
    ),
    "client_keys_in_the_store": (
        TRIANGLE,
        'set.gateway.keys_file = "${builtins.toFile "keys" "a:b"}";',
        "`services.dsv41.settings.gateway.keys_file' is not of type",
    ),
    "tls_key_in_the_store": (
        TRIANGLE,
        'set.gateway.tls.key_file = "${builtins.toFile "key" "PEM"}";',
        "`services.dsv41.settings.gateway.tls.key_file' is not of type",
    ),
    "world_size_the_fleet_has_not": (
        TRIANGLE,
        "set.engine.parallelism.tp_size = 4;",
        "engine.parallelism.tp_size is 4, but fleet.nodes has 3. One GPU a node: make the two equal.",
    ),
    "model_that_cannot_be_cut_into_five": (
        SWITCHED,
        """
          set.engine.profile = lib.mkForce null; set.engine.parallelism.tp_size = 5;
          set.fleet.nodes.spark5 = {
            rank = 4; management_address = "10.0.0.5"; management_interface = "enP7s7";
            rails.a = { interface = "enp1s0f0np0"; rdma_device = "rocep1s0f0"; address = "10.0.20.5/24"; };
          };
        """,
        "engine.parallelism.tp_size is 5, but 5 shards of the experts' width 2304 are not whole blocks of 32: "
        "the model cannot be cut so. Use 1, 2, 3, 4, 6, 8 nodes.",
    ),
    "heads_that_do_not_divide_and_are_not_padded": (
        TRIANGLE,
        "set.adapters.tp_pad = null;",
        "engine.parallelism.tp_size is 3, which does not divide the model's 8 groups of attention heads. "
        "Set services.dsv41.settings.adapters.tp_pad = { }, which pads them.",
    ),
    "ring_of_three": (
        TRIANGLE,
        'set.fleet.topology = lib.mkForce "ring";',
        "fleet.topology is ring, which has 4 nodes or more; fleet.nodes has 3. Three are a triangle.",
    ),
    "ring_with_a_switch": (
        SWITCHED,
        'set.fleet.topology = lib.mkForce "ring";',
        "fleet.topology is ring, but not every node has two neighbours (spark1 has 0, spark2 has 0,",
    ),
    "expert_parallelism_that_does_not_divide": (
        TRIANGLE,
        "set.engine.parallelism.ep_size = 2;",
        "engine.parallelism.ep_size 2 does not divide tp_size 3. Use a divisor, or 1.",
    ),
    "twins_in_one_subnet": (
        SWITCHED,
        'set.fleet.nodes.spark2.rails.b.address = lib.mkForce "10.0.20.12/24";',
        "fleet.nodes.spark2.rails: a, b share the subnet 10.0.20.0/24. "
        "Twins of one port need separate subnets, or luck decides which one carries the traffic.",
    ),
    "rail_address_used_twice": (
        SWITCHED,
        'set.fleet.nodes.spark2.rails.a.address = lib.mkForce "10.0.20.1/24";',
        "fleet: the rail address 10.0.20.1 is used twice.",
    ),
    "interface_named_twice": (
        SWITCHED,
        'set.fleet.nodes.spark2.rails.b.interface = lib.mkForce "enp1s0f0np0";',
        "fleet.nodes.spark2 names the interface enp1s0f0np0 more than once.",
    ),
    "peer_that_is_no_node": (
        TRIANGLE,
        'set.fleet.nodes.spark1.rails.one-two.peer = lib.mkForce "spark9";',
        "fleet.nodes.spark1.rails.one-two.peer is spark9, which is not another node of this fleet "
        "(spark1, spark2, spark3).",
    ),
    "cable_with_one_end": (
        TRIANGLE,
        'set.fleet.nodes.spark1.rails.one-two.peer = lib.mkForce "spark3";',
        "fleet.nodes.spark1.rails.one-two.peer is spark3, but spark3 has no rail one-two back to spark1.",
    ),
    "ends_in_different_subnets": (
        TRIANGLE,
        'set.fleet.nodes.spark2.rails.one-two.address = lib.mkForce "10.0.99.2/24";',
        "fleet.nodes.spark1.rails.one-two.address is 10.0.12.1/24, but its peer's is 10.0.99.2/24",
    ),
    "rail_without_peer_in_a_triangle": (
        TRIANGLE,
        "set.fleet.nodes.spark1.rails.one-two.peer = lib.mkForce null;",
        "fleet.nodes.spark1.rails.one-two.peer is null, but a triangle has a node at each cable's end.",
    ),
    "triangle_of_four": (
        SWITCHED,
        'set.fleet.topology = lib.mkForce "triangle";',
        "fleet.topology is triangle, which has 3 nodes; fleet.nodes has 4.",
    ),
    "rail_without_rdma_device": (
        SWITCHED,
        "set.fleet.nodes.spark4.rails.a.rdma_device = lib.mkForce null;",
        "fleet.nodes.spark4.rails.a.rdma_device is null, but engine.device is cuda.",
    ),
    "share_without_a_rail_to_the_head": (
        SWITCHED,
        'set.share.mode = "nfs"; set.fleet.nodes.spark3.rails = lib.mkForce { };',
        "share.mode is nfs, but spark3 has no rail to the head spark1.",
    ),
    "profile_of_another_size": (
        SWITCHED,
        'set.engine.profile = lib.mkForce "tp3"; set.engine.parallelism.tp_size = 4;',
        "engine.profile is tp3, but fleet.nodes has 4. The profile was measured on 3 nodes",
    ),
    "profile_that_is_not_there": (
        SWITCHED,
        'set.engine.profile = lib.mkForce "tp5"; set.engine.parallelism.tp_size = 4;',
        "engine.profile is tp5; the measured profiles are tp3, tp4. Use one, or null.",
    ),
    "no_head": (
        SWITCHED,
        "set.fleet.nodes.spark1.rank = lib.mkForce 4;",
        "fleet.nodes.*.rank are 1, 2, 3, 4, expected 0, 1, 2, 3.",
    ),
    "share_without_a_rail_to_the_head_seen_from_the_worker": (
        SWITCHED,
        'set.share.mode = "nfs"; set.fleet.nodes.spark3.rails = lib.mkForce { }; '
        'machine.networking.hostName = "spark3";',
        "share.mode is nfs, but spark3 has no rail to the head spark1.",
    ),
    "machine_outside_the_fleet": (
        TRIANGLE,
        'machine.networking.hostName = "spark7";',
        "services.dsv41.node is spark7, which is not a node of the fleet triangle (spark1, spark2, spark3).",
    ),
    "clock_cap_out_of_range": (
        SWITCHED,
        "machine.services.dsv41.clockCapMhz = lib.mkForce 22;",
        "A definition for option `services.dsv41.clockCapMhz' is not of type",
    ),
    "iptables": (
        TRIANGLE,
        "machine.networking.nftables.enable = false;",
        "services.dsv41.openFirewall needs networking.nftables.enable, because it lets nodes in by address.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_nixos_rebuild_refuses(nix: Nix, name: str) -> None:
    fleet, change, message = MISTAKES[name]
    imports = f"[ {fleet} ]" if fleet else "[ ]"
    expression = f"""
      let
        change = {{ machine = {{ }}; set = {{ }}; }} // {{ {change} }};
      in
      (lib.nixosSystem {{
        modules = [
          flake.nixosModules.default
          machine
          {{
            imports = {imports};
            networking.hostName = lib.mkDefault "spark1";
            services.dsv41.enable = true;
          }}
          {{ services.dsv41.settings = change.set; }}
          change.machine
        ];
      }}).config.system.build.toplevel.drvPath
    """
    # A refusal is one message of several lines at most; line breaks within it are Nix's own.
    assert message in " ".join(nix.refusal(expression).split())


def test_a_machine_without_the_module_enabled_needs_no_fleet(nix: Nix) -> None:
    assert nix.value(
        "(lib.nixosSystem { modules = [ flake.nixosModules.default machine ]; }).config.systemd.units"
    ) == {}  # fmt: skip
