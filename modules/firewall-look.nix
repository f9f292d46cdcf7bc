# One look at the packet filter, for the check of its rules: listing them takes CAP_NET_ADMIN, which would also let the
# supervisor change the machine's network for as long as it runs. This unit has it for the moment of one question.
{
  config,
  lib,
  pkgs,
  utils,
  ...
}@args:
let
  cfg = config.services.dsv41;
  node = import ./node.nix args;
  runDir = node.path cfg.settings.supervisor.run_dir;
in
{
  config = lib.mkIf cfg.enable {
    systemd.services.dsv41-firewall = {
      description = "dsv41 looks at the packet filter";
      path = [ pkgs.nftables ];
      restartIfChanged = false;
      stopIfChanged = false;
      startLimitIntervalSec = 0;

      serviceConfig = node.hardening // {
        Type = "oneshot";
        # Not the program dsv41: starting that would take half of the time that `dsv41 doctor` has for it.
        ExecStart = "/bin/sh -c 'nft -j list ruleset >firewall.json.new && mv firewall.json.new firewall.json'";
        WorkingDirectory = runDir;
        User = "dsv41-supervisor";
        Group = "dsv41-supervisor";
        # The run directory belongs to dsv41.
        SupplementaryGroups = [ "dsv41" ];
        AmbientCapabilities = [ "CAP_NET_ADMIN" ];
        CapabilityBoundingSet = [ "CAP_NET_ADMIN" ];
        RestrictAddressFamilies = [
          "AF_NETLINK"
          "AF_UNIX"
        ];
        PrivateDevices = true;
        RestrictNamespaces = true;
        RestrictRealtime = true;
        SystemCallFilter = [ "@system-service" ];
        SystemCallErrorNumber = "EPERM";
        TimeoutStartSec = 10;
        LimitCORE = 0;
        # Nothing else, so that no link left there leads this user to its own state.
        ReadWritePaths = [ runDir ];
        LogExtraFields = node.logFields [ "DSV41_STAGE=fabric" ];
        SyslogIdentifier = "dsv41-firewall";
      };
    };
  };
}
