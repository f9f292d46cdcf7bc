# Three declared machines on one network: boot, order, a rank's death, a rail down, a switch under a serving rank, rollback,
# a power cut. Soft-RoCE stands for the cards and the scripted engine for SGLang; NFS, systemd and the modules are real.
#
# Needs KVM and a real nixpkgs (`make test-vm`). Evaluated by tests/eval; never run by the authors, who have neither.
{ self, pkgs }:
let
  demo = ../../demo;
  python = pkgs.python312.withPackages (_: [ self.packages.${pkgs.stdenv.hostPlatform.system}.supervisor ]);
  checkpoint = "/srv/models/demo";

  node = number: {
    rank = number - 1;
    # What the test driver gives to the n-th machine on its first and second network.
    management_address = "192.168.1.${toString number}";
    management_interface = "eth1";
    rails.a = {
      interface = "eth2";
      rdma_device = "rxe_eth2";
      address = "192.168.2.${toString number}/24";
    };
  };

  machine =
    { lib, ... }:
    {
      imports = [ self.nixosModules.default ];
      virtualisation.vlans = [
        1
        2
      ];
      virtualisation.memorySize = 2048;
      networking.rxe = {
        enable = true;
        interfaces = [ "eth2" ];
      };
      environment.systemPackages = [ python ];
      # Files that their users can be given, as on a real node: links into the store are refused.
      systemd.tmpfiles.rules = [
        "f /etc/dsv41/fleet-key 0600 root root - vm-test-key-that-is-no-secret-0000000000000000000000000000000000"
        "f /etc/dsv41/api-keys 0600 root root - vm:sk-vm-test-key-that-is-no-secret"
      ];

      # What the test switches to: another cap is another settings file, and so another rank.
      specialisation.changed.configuration.services.dsv41.settings.gateway.max_tokens_cap = lib.mkForce 512;

      services.dsv41 = {
        enable = true;
        settings = {
          fleet = {
            name = "vm";
            topology = "switched";
            mtu = 1500;
            key_file = "/etc/dsv41/fleet-key";
            nodes = {
              spark1 = node 1;
              spark2 = node 2;
              spark3 = node 3;
            };
          };
          checkpoint = {
            path = checkpoint;
            repo = "dsv41-demo";
            revision = "fa97de9da56e5ab075cb21b645edb821417870fec2baea57bfa9e5de6a4e50e8";
          };
          share.mode = "nfs";
          pack.cache_bytes = 1048576;
          engine = {
            kind = "scripted";
            device = "cpu";
            python = "${python}/bin/python3";
            python_path = [ "${demo}" ];
            parallelism.tp_size = 3;
            context_length = 4096;
          };
          gateway.address = "192.168.1.1";
          gateway.keys_file = "/etc/dsv41/api-keys";
          gateway.max_tokens_cap = lib.mkDefault 1024;
          guard.floor_bytes = 268435456;
          recovery.backoff_s = 1;
        };
      };
    };
in
pkgs.testers.runNixOSTest {
  name = "dsv41-three-nodes";
  nodes = {
    spark1 = machine;
    spark2 = machine;
    spark3 = machine;
  };

  testScript = ''
    import json

    nodes = [spark1, spark2, spark3]

    def serving():
        spark1.wait_until_succeeds("dsv41 status", timeout=180)

    with subtest("boot: rails, soft-RoCE, the share and the daemons"):
        start_all()
        for node in nodes:
            node.wait_for_unit("dsv41-supervisor.service")
            node.succeed("rdma link show rxe_eth2/1")
        spark1.wait_for_unit("dsv41-gateway.service")
        spark1.succeed("mkdir -p /srv/models && python3 ${demo}/make_checkpoint.py ${checkpoint} && exportfs -ra")
        for node in nodes[1:]:
            node.succeed("ls ${checkpoint}/dsv41-checkpoint.json")
            node.fail("touch ${checkpoint}/written")

    with subtest("order: rank 0 brings all up, workers first"):
        spark1.succeed("systemctl start dsv41-rank@0")
        serving()
        started = [
            int(node.succeed(f"systemctl show -P ActiveEnterTimestampMonotonic dsv41-rank@{rank}"))
            for rank, node in enumerate(nodes)
        ]
        assert all(started), started

    with subtest("a rank dies: all stop, and the fleet comes back"):
        before = spark1.succeed("systemctl show -P InvocationID dsv41-rank@0")
        spark3.succeed("systemctl kill -s KILL dsv41-rank@2")
        spark1.wait_until_succeeds(f"test \"$(systemctl show -P InvocationID dsv41-rank@0)\" != {before.strip()}", timeout=180)
        serving()

    with subtest("a rail down is named"):
        spark2.succeed("ip link set eth2 down")
        spark1.wait_until_succeeds("journalctl -u dsv41-supervisor | grep -E 'spark2.*rail a|rail a.*spark2'", timeout=60)
        spark2.succeed("ip link set eth2 up")
        serving()

    with subtest("a switch under a serving rank is refused with the drain to run"):
        changed = "/run/current-system/specialisation/changed/bin/switch-to-configuration"
        status, said = spark2.execute(f"{changed} switch 2>&1")
        assert status != 0 and "dsv41 drain" in said, said
        serving()

    with subtest("after a drain it goes on, and so does the rollback"):
        spark1.succeed("dsv41 drain")
        for node in nodes:
            node.succeed(f"{changed} switch")
        spark1.succeed("systemctl start dsv41-rank@0")
        serving()
        spark1.succeed("dsv41 drain")
        for node in nodes:
            node.succeed("/nix/var/nix/profiles/system/bin/switch-to-configuration switch || "
                         "$(readlink -f /run/booted-system)/bin/switch-to-configuration switch")
        spark1.succeed("systemctl start dsv41-rank@0")
        serving()

    with subtest("a power cut of the head: workers are not left serving a fleet that is gone"):
        spark1.crash()
        for rank, node in enumerate(nodes[1:], start=1):
            node.wait_until_fails(f"systemctl is-active dsv41-rank@{rank}", timeout=180)
        spark1.start()
        spark1.wait_for_unit("dsv41-supervisor.service")
        spark1.succeed("systemctl start dsv41-rank@0")
        serving()
        assert json.loads(spark1.succeed("dsv41 status --json"))["state"] == "serving"
  '';
}
