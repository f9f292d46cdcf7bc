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
    "rdma_device_named_twice": (
        SWITCHED,
        'set.fleet.nodes.spark2.rails.b.rdma_device = lib.mkForce "rocep1s0f0";',
        "fleet.nodes.spark2 names the RDMA device rocep1s0f0 more than once. Each twin has its own, and one that is "
        "named for both leaves the other idle.",
    ),
    "management_network_on_a_rail": (
        SWITCHED,
        'set.fleet.nodes.spark3.rails.a.address = lib.mkForce "10.0.0.13/24";',
        "fleet.nodes.spark3.rails.a.address is 10.0.0.13/24, and in that subnet are the management addresses of "
        "spark1, spark2, spark3, spark4. Give rails subnets of their own, or the way to those nodes is a rail.",
    ),
    "rail_with_the_networks_own_address": (
        SWITCHED,
        'set.fleet.nodes.spark3.rails.a.address = lib.mkForce "10.0.20.0/24";',
        "fleet.nodes.spark3.rails.a.address is 10.0.20.0/24, which names the network or all in it and no machine. "
        "Take an address between the two.",
    ),
    "rail_with_the_broadcast_address": (
        SWITCHED,
        'set.fleet.nodes.spark3.rails.a.address = lib.mkForce "10.0.20.255/24";',
        "fleet.nodes.spark3.rails.a.address is 10.0.20.255/24, which names the network or all in it and no machine.",
    ),
    "management_address_used_twice": (
        SWITCHED,
        'set.fleet.nodes.spark3.management_address = lib.mkForce "10.0.0.1";',
        "fleet: the management address with port 10.0.0.1:7141 is used by several nodes. Give each its own.",
    ),
    "key_written_into_etc_by_nix": (
        TRIANGLE,
        'machine.environment.etc."dsv41/fleet-key".text = "secret";',
        "fleet.key_file is /etc/dsv41/fleet-key, and environment.etc makes that file from the Nix store, where every "
        "user can read it. Take it out of environment.etc and write it on the node.",
    ),
    "client_keys_written_into_etc_by_nix": (
        TRIANGLE,
        'machine.environment.etc."dsv41/api-keys".source = "${builtins.toFile "keys" "a:b"}";',
        "gateway.keys_file is /etc/dsv41/api-keys, and environment.etc makes that file from the Nix store,",
    ),
    "key_in_the_store_by_another_spelling": (
        TRIANGLE,
        'set.fleet.key_file = lib.mkForce "/nix//store/abc-fleet-key";',
        "`services.dsv41.settings.fleet.key_file' is not of type `string, matching ^/, outside the Nix store,",
    ),
    "token_among_the_engines_variables": (
        TRIANGLE,
        'set.engine.environment.HF_TOKEN = "hf_abc";',
        "engine.environment.HF_TOKEN looks like a secret, and settings are in the Nix store, where every user can read "
        "them. Take it out: a rank reads the checkpoint from its directory and needs no account.",
    ),
    "one_file_for_two_secrets": (
        TRIANGLE,
        'set.gateway.keys_file = "/etc/dsv41/fleet-key";',
        "fleet.key_file, gateway.keys_file are the same file /etc/dsv41/fleet-key. Each secret has its own: they "
        "belong to different users.",
    ),
    "gateway_at_another_nodes_address": (
        TRIANGLE,
        'set.gateway.address = lib.mkForce "10.0.0.2";',
        "gateway.address is 10.0.0.2, which is spark2's, and the gateway runs on the head spark1. Use an address of "
        "the head, 0.0.0.0 for all of them, or 127.0.0.1.",
    ),
    "gateway_on_the_supervisors_port": (
        TRIANGLE,
        "set.gateway.port = 7141;",
        "gateway.port is 7141, which is the supervisor's on the head (fleet.nodes.spark1.supervisor_port). "
        "Use another.",
    ),
    "gateway_on_a_port_of_the_rendezvous": (
        TRIANGLE,
        "set.gateway.port = 20001;",
        "gateway.port is 20001, which is one of the ranks' (engine.rendezvous, 20000 to 20063). Use another.",
    ),
    "directory_with_a_space": (
        TRIANGLE,
        'set.pack.directory = "/data/packed rows";',
        "pack.directory is /data/packed rows, which has a space or %. systemd would read two paths or a specifier "
        "there. Name one without.",
    ),
    "key_file_with_a_percent_sign": (
        TRIANGLE,
        'set.fleet.key_file = lib.mkForce "/etc/dsv41/key%n";',
        "fleet.key_file is /etc/dsv41/key%n, which has a space or %.",
    ),
    "rows_on_the_read_only_share": (
        TRIANGLE,
        'set.pack.directory = "/srv/models/DeepSeek-V4.1-Flash/rows";',
        "pack.directory is /srv/models/DeepSeek-V4.1-Flash/rows, within checkpoint.path, which workers mount read-only "
        "with share.mode nfs. Name a directory on each node's own drive.",
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


def system_of_a_fleet(change: str, node: str = "spark2") -> str:
    """What `lib.fleet` makes of the triangle for one node, with a module that all nodes get."""
    return f"(flake.lib.fleet {{ fleet = {TRIANGLE}; modules = [ machine {{ {change} }} ]; }}).{node}.config"


def test_one_host_name_for_all_nodes_is_refused(nix: Nix) -> None:
    """As in a machine.nix that was one machine's before: every box would be rank 0."""
    message = nix.refusal(system_of_a_fleet('networking.hostName = "spark1";') + ".system.build.toplevel.drvPath")
    assert (
        "lib.fleet: the system of spark2 says that it is spark1 (services.dsv41.node). Take networking.hostName and "
        "services.dsv41.node out of what all nodes share." in " ".join(message.split())
    )


def test_a_fleets_file_need_not_enable_its_nodes(nix: Nix) -> None:
    fleet = """{ services.dsv41.settings = {
      fleet = { name = "one"; topology = "switched"; key_file = "/k";
        nodes.a = { rank = 0; management_address = "10.0.0.1"; management_interface = "lan"; }; };
      checkpoint = { path = "/c"; revision = "0123456"; };
      engine.parallelism.tp_size = 1;
    }; }"""
    enabled = f"(flake.lib.fleet {{ fleet = {fleet}; modules = [ machine ]; }}).a.config.services.dsv41.enable"
    assert nix.value(enabled) is True


@pytest.mark.parametrize("source", ["/run/secrets/fleet-key", "/persist/fleet-key"])
def test_a_link_in_etc_to_a_secret_outside_the_store_is_no_mistake(nix: Nix, source: str) -> None:
    change = f'environment.etc."dsv41/fleet-key".source = "{source}";'
    assert nix.value(system_of_a_fleet(change) + ".system.build.toplevel.drvPath")
