# Four Sparks behind a RoCE switch, both twins of one port each: the rails differ only in their last number, so the
# nodes are written by a function.
let
  spark = number: {
    rank = number - 1;
    management_address = "10.0.0.${toString number}";
    management_interface = "enP7s7";
    rails.a = {
      interface = "enp1s0f0np0";
      rdma_device = "rocep1s0f0";
      address = "10.0.20.${toString number}/24";
    };
    rails.b = {
      interface = "enP2p1s0f0np0";
      rdma_device = "roceP2p1s0f0";
      address = "10.0.21.${toString number}/24";
    };
  };
in
{
  services.dsv41 = {
    enable = true;
    # As in the validation that the profile's numbers are from.
    clockCapMhz = 2200;

    settings = {
      fleet = {
        name = "switched";
        topology = "switched";
        key_file = "/etc/dsv41/fleet-key";
        nodes = {
          spark1 = spark 1;
          spark2 = spark 2;
          spark3 = spark 3;
          spark4 = spark 4;
        };
      };

      checkpoint = {
        # Every node has its own copy.
        path = "/srv/models/DeepSeek-V4.1-Flash";
        revision = "dba1be0a";
      };

      engine.profile = "tp4";

      adapters.engram_nvme = { };

      gateway.address = "10.0.0.1";
    };
  };
}
