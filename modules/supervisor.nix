# The daemon of every node: facts, checks, the sequence of the fleet, and the memory guard. It runs always, and it is
# the last thing on the machine that may be killed: a Spark out of memory hangs until someone pulls its power cord.
{
  config,
  lib,
  utils,
  ...
}@args:
let
  cfg = config.services.dsv41;
  node = import ./node.nix args;
  inherit (cfg.settings) engine fleet supervisor;
  runDir = node.path supervisor.run_dir;
  stateDir = node.path supervisor.state_dir;
  # The other nodes, and this one when it talks to itself by its management address.
  addresses = lib.concatMapStringsSep ", " (n: n.management_address) (lib.attrValues fleet.nodes);
in
{
  options.services.dsv41.openFirewall = lib.mkOption {
    type = lib.types.bool;
    default = true;
    description = "Let the fleet's other nodes in: on the rails from anyone, on the management interface from their addresses only. Without it ranks find no rendezvous and no boot gets past it.";
  };

  config = lib.mkIf cfg.enable {
    systemd.services.dsv41-supervisor = {
      description = "dsv41 supervisor of ${node.name}";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" ];
      after = [
        "network-online.target"
        "dbus.service"
      ];
      # The memory guard has no business giving up, however often it was restarted.
      startLimitIntervalSec = 0;

      serviceConfig = node.hardening // {
        Type = "notify";
        NotifyAccess = "main";
        ExecStart = node.exec "supervisor" [ ];
        Restart = "always";
        RestartSec = 2;
        # 78: misconfigured. Starting again would say the same thing again.
        RestartPreventExitStatus = 78;

        # Root: it starts units over the system bus and kills a rank by pid. What root may do is cut down to that, and
        # to reading what other processes hold and what the kernel logs.
        CapabilityBoundingSet = [
          "CAP_DAC_READ_SEARCH"
          "CAP_KILL"
          "CAP_SYSLOG"
          "CAP_SYS_PTRACE"
        ];
        # Plans and reports of its rank belong to dsv41, and root without CAP_DAC_OVERRIDE needs the group for them.
        SupplementaryGroups = [ "dsv41" ];
        OOMScoreAdjust = -1000;
        ManagedOOMPreference = "omit";
        Nice = -5;

        ReadWritePaths = [
          runDir
          stateDir
        ];
        LogExtraFields = node.logFields [ "DSV41_RANK=${toString node.this.rank}" ];
        SyslogIdentifier = "dsv41-supervisor";
      };
    };

    # The rank's plan and the engine's reports have a directory of their own; packing leaves its progress beside it.
    # The fleet key is read by supervisor, rank and gateway; the program refuses one that everybody can read.
    systemd.tmpfiles.rules = [
      "z ${node.path fleet.key_file} 0640 root dsv41 -"
      "d ${runDir} 2775 root dsv41 -"
      "d ${runDir}/rank-${toString node.this.rank} 2770 dsv41 dsv41 -"
      "d ${stateDir} 0750 root root -"
    ];

    # nftables only: a rule by source address has no place in the iptables options.
    networking.nftables.enable = lib.mkIf cfg.openFirewall (lib.mkDefault true);
    networking.firewall.trustedInterfaces = lib.mkIf cfg.openFirewall node.railInterfaces;
    networking.firewall.extraInputRules = lib.mkIf cfg.openFirewall ''
      iifname "${node.this.management_interface}" ip saddr { ${addresses} } tcp dport { ${toString node.this.supervisor_port}, ${toString engine.rendezvous.first_port}-${
        toString (engine.rendezvous.first_port + engine.rendezvous.n_ports - 1)
      }, 32768-65535 } accept comment "dsv41: supervisor, rendezvous, Gloo"
    '';
  };
}
