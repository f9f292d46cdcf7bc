# Four Sparks in a ring without a switch: each is cabled to the one before and the one after, with both twins of each
# port. The nodes are written by a function of their numbers, the cables by those of their first ends.
let
  before = number: if number == 1 then 4 else number - 1;
  after = number: if number == 4 then 1 else number + 1;

  # One end of cable N, which goes from Spark N to the next one. `subnet` is 0 for the port and 1 for its twin.
  end = cable: subnet: number: device: peer: {
    inherit (device) interface rdma_device;
    address = "10.${toString subnet}.3${toString cable}.${toString number}/24";
    peer = "spark${toString peer}";
  };
  ports = {
    next = {
      interface = "enp1s0f0np0";
      rdma_device = "rocep1s0f0";
    };
    nextTwin = {
      interface = "enP2p1s0f0np0";
      rdma_device = "roceP2p1s0f0";
    };
    last = {
      interface = "enp1s0f1np1";
      rdma_device = "rocep1s0f1";
    };
    lastTwin = {
      interface = "enP2p1s0f1np1";
      rdma_device = "roceP2p1s0f1";
    };
  };

  spark = number: {
    rank = number - 1;
    management_address = "10.0.0.${toString number}";
    management_interface = "enP7s7";
    rails = {
      "cable${toString number}" = end number 0 number ports.next (after number);
      "cable${toString number}-twin" = end number 1 number ports.nextTwin (after number);
      "cable${toString (before number)}" = end (before number) 0 number ports.last (before number);
      "cable${toString (before number)}-twin" = end (before number) 1 number ports.lastTwin (before number);
    };
  };
in
{
  services.dsv41 = {
    enable = true;

    settings = {
      fleet = {
        name = "ring";
        topology = "ring";
        key_file = "/etc/dsv41/fleet-key";
        nodes = {
          spark1 = spark 1;
          spark2 = spark 2;
          spark3 = spark 3;
          spark4 = spark 4;
        };
      };

      checkpoint = {
        # Every node has its own copy: the node opposite the head has no cable to it.
        path = "/srv/models/DeepSeek-V4.1-Flash";
        revision = "dba1be0a";
      };

      engine.profile = "tp4";
      # NCCL as it is released cannot route around a ring; `dsv41 doctor` names a build that lacks the patch.
      engine.nccl.library = "/var/lib/dsv41/nccl/libnccl.so.2";

      adapters.engram_nvme = { };

      gateway.address = "10.0.0.1";
    };
  };
}
