# Three Sparks, each cabled to both others. One file for all three; each machine finds itself by its host name.
{
  services.dsv41 = {
    enable = true;

    settings = {
      fleet = {
        name = "triangle";
        topology = "triangle";
        key_file = "/etc/dsv41/fleet-key";

        nodes.spark1 = {
          rank = 0;
          management_address = "10.0.0.1";
          management_interface = "enP7s7";
          rails.one-two = {
            interface = "enp1s0f0np0";
            rdma_device = "rocep1s0f0";
            address = "10.0.12.1/24";
            peer = "spark2";
          };
          rails.one-two-twin = {
            interface = "enP2p1s0f0np0";
            rdma_device = "roceP2p1s0f0";
            address = "10.1.12.1/24";
            peer = "spark2";
          };
          rails.one-three = {
            interface = "enp1s0f1np1";
            rdma_device = "rocep1s0f1";
            address = "10.0.13.1/24";
            peer = "spark3";
          };
          rails.one-three-twin = {
            interface = "enP2p1s0f1np1";
            rdma_device = "roceP2p1s0f1";
            address = "10.1.13.1/24";
            peer = "spark3";
          };
        };

        nodes.spark2 = {
          rank = 1;
          management_address = "10.0.0.2";
          management_interface = "enP7s7";
          rails.one-two = {
            interface = "enp1s0f0np0";
            rdma_device = "rocep1s0f0";
            address = "10.0.12.2/24";
            peer = "spark1";
          };
          rails.one-two-twin = {
            interface = "enP2p1s0f0np0";
            rdma_device = "roceP2p1s0f0";
            address = "10.1.12.2/24";
            peer = "spark1";
          };
          rails.two-three = {
            interface = "enp1s0f1np1";
            rdma_device = "rocep1s0f1";
            address = "10.0.23.2/24";
            peer = "spark3";
          };
          rails.two-three-twin = {
            interface = "enP2p1s0f1np1";
            rdma_device = "roceP2p1s0f1";
            address = "10.1.23.2/24";
            peer = "spark3";
          };
        };

        nodes.spark3 = {
          rank = 2;
          management_address = "10.0.0.3";
          management_interface = "enP7s7";
          rails.one-three = {
            interface = "enp1s0f0np0";
            rdma_device = "rocep1s0f0";
            address = "10.0.13.3/24";
            peer = "spark1";
          };
          rails.one-three-twin = {
            interface = "enP2p1s0f0np0";
            rdma_device = "roceP2p1s0f0";
            address = "10.1.13.3/24";
            peer = "spark1";
          };
          rails.two-three = {
            interface = "enp1s0f1np1";
            rdma_device = "rocep1s0f1";
            address = "10.0.23.3/24";
            peer = "spark2";
          };
          rails.two-three-twin = {
            interface = "enP2p1s0f1np1";
            rdma_device = "roceP2p1s0f1";
            address = "10.1.23.3/24";
            peer = "spark2";
          };
        };
      };

      checkpoint = {
        path = "/srv/models/DeepSeek-V4.1-Flash";
        revision = "dba1be0a";
      };
      # The head has the 476 GiB, the others read them over the rails while they load.
      share.mode = "nfs";

      engine.profile = "tp3";

      adapters.engram_nvme = { };

      gateway.address = "10.0.0.1";
    };
  };
}
