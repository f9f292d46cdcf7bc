# Stage 2, fabric: the rails as systemd-networkd links. Nothing but rails is touched; the management network stays with
# whatever runs it.
{
  config,
  lib,
  utils,
  ...
}@args:
let
  cfg = config.services.dsv41;
  node = import ./node.nix args;
  # In a sysctl's name a dot separates, so one within an interface's name is written as a slash.
  sysctlName = lib.replaceStrings [ "." ] [ "/" ];
  # The peers on a rail whose hardware address the fleet file names.
  neighbours =
    name: rail:
    lib.concatStrings (
      lib.mapAttrsToList (
        peer: there:
        lib.optionalString
          (
            peer != node.name
            && (rail.peer == null || rail.peer == peer)
            && there.rails ? ${name}
            && there.rails.${name}.mac != null
          )
          ''
            [Neighbor]
            Address=${lib.head (lib.splitString "/" there.rails.${name}.address)}
            LinkLayerAddress=${there.rails.${name}.mac}
          ''
      ) cfg.settings.fleet.nodes
    );
in
{
  config = lib.mkIf cfg.enable {
    systemd.network = {
      enable = true;
      networks = lib.mapAttrs' (
        name: rail:
        lib.nameValuePair "20-dsv41-${name}" {
          matchConfig.Name = rail.interface;
          address = [ rail.address ];
          linkConfig = {
            # Both ends must agree, or small packets pass and large transfers fail.
            MTUBytes = toString cfg.settings.fleet.mtu;
            RequiredForOnline = "routable";
          };
          networkConfig = {
            DHCP = "no";
            IPv6AcceptRA = false;
            # Every address is an entry of the GID table; fewer entries, fewer surprises.
            LinkLocalAddressing = "no";
            # networkd takes a link's addresses away with its carrier. A cable that is out for a second would take the
            # entry out of the GID table under a running rank, and the next one might stand elsewhere.
            IgnoreCarrierLoss = true;
          };
          # RoCE does not wait for ARP: networkd makes permanent entries of these.
          extraConfig = neighbours name rail;
        }
      ) node.this.rails;
      # A missing cable is for the supervisor to name; it must not hold up the rest of the boot for longer.
      wait-online.timeout = lib.mkDefault 30;
    };

    # Other network managers keep their hands off the rails: an address that comes and goes moves the GID table.
    networking.dhcpcd.denyInterfaces = node.railInterfaces;
    networking.networkmanager.unmanaged = map (
      interface: "interface-name:${interface}"
    ) node.railInterfaces;

    # The two PCIe twins of a port answer ARP for their own address only.
    boot.kernel.sysctl = lib.mergeAttrsList (
      map (interface: {
        "net.ipv4.conf.${sysctlName interface}.arp_ignore" = 1;
        "net.ipv4.conf.${sysctlName interface}.arp_announce" = 2;
      }) node.railInterfaces
    );

    boot.kernelModules = lib.mkIf (lib.any (rail: rail.rdma_device != null) node.rails) [
      "mlx5_ib"
      "rdma_ucm"
    ];
  };
}
