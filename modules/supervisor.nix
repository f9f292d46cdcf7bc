# The daemon of every node: facts, checks, the sequence of the fleet. It runs always, and with the memory guard it is the
# last thing on the machine that may be killed.
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
  inherit (cfg.settings) alerts engine fleet supervisor;
  capabilities = [
    "CAP_KILL"
    "CAP_SYSLOG"
    "CAP_SYS_PTRACE"
  ];
  # What the supervisor starts and stops.
  units = [
    "dsv41-rank@${toString node.this.rank}"
    "dsv41-pack"
    "dsv41-guard"
    "dsv41-probe"
    "dsv41-firewall"
  ] ++ lib.optional (engine.container != null) "dsv41-container";
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
      # `dsv41 doctor --deep` writes over RDMA with ib_write_bw where this nixpkgs has it, or an overlay brings it.
      path = lib.optional (pkgs ? perftest) pkgs.perftest;
      # It has no business giving up, however often it was restarted.
      startLimitIntervalSec = 0;

      serviceConfig = node.hardening // {
        Type = "notify";
        NotifyAccess = "main";
        ExecStart = node.exec "supervisor" [ ];
        Restart = "always";
        # Back before its peers call it silent (supervisor.peer_timeout_s), so that a restart costs no boot.
        RestartSec = "250ms";
        # 78: misconfigured. Starting again would say the same thing again.
        RestartPreventExitStatus = 78;
        # Its loop beats three times in this time. Ended for standing still it is back, and takes its rank up again,
        # before the lease (supervisor.lease_ttl_s) runs out.
        WatchdogSec = 10;
        TimeoutStopSec = 15;
        LimitCORE = 0;

        # A user of its own, and not root: whoever is root on the system bus may start anything. The polkit rule below
        # lets it start and stop the units of this node's rank; the capabilities let it kill a rank by pid, read what a
        # rank has mapped, and read the kernel's log.
        User = "dsv41-supervisor";
        Group = "dsv41-supervisor";
        AmbientCapabilities = capabilities;
        CapabilityBoundingSet = capabilities;
        # CAP_SYS_PTRACE is for reading /proc alone.
        SystemCallFilter = [ "~@debug" ];
        # Plans, reports and rows of its rank belong to dsv41; the other one is for the last lines of its rank.
        SupplementaryGroups = [
          "dsv41"
          "systemd-journal"
        ];
        LoadCredential = [
          "fleet-key:${node.path fleet.key_file}"
        ] ++ lib.optional (alerts.webhook_url_file != null) "webhook-url:${node.path alerts.webhook_url_file}";
        SetCredential = [ "fleet-key:-" ] ++ lib.optional (alerts.webhook_url_file != null) "webhook-url:-";
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

    users.users.dsv41-supervisor = {
      isSystemUser = true;
      group = "dsv41-supervisor";
      description = "Supervisor and memory guard of dsv41";
    };
    users.groups.dsv41-supervisor = { };

    security.polkit.enable = true;
    security.polkit.extraConfig = ''
      polkit.addRule(function(action, subject) {
        if (action.id == "org.freedesktop.systemd1.manage-units" && subject.user == "dsv41-supervisor" &&
            [${lib.concatMapStringsSep ", " (unit: ''"${unit}.service"'') units}].indexOf(action.lookup("unit")) >= 0 &&
            ["start", "stop", "kill"].indexOf(action.lookup("verb")) >= 0) {
          return polkit.Result.YES;
        }
      });
    '';

    # The rank's plan and the engine's reports have a directory of their own; packing leaves its progress beside it.
    # Units get the fleet key as a credential. The group is for people: members of dsv41 may use the command `dsv41`.
    systemd.tmpfiles.rules = [
      "z ${node.path fleet.key_file} 0640 root dsv41 -"
      "d ${runDir} 2775 root dsv41 -"
      "d ${runDir}/probe 2770 dsv41 dsv41 -"
      "d ${runDir}/rank-${toString node.this.rank} 2770 dsv41 dsv41 -"
      "d ${stateDir} 0750 dsv41-supervisor dsv41-supervisor -"
      # What each MESSAGE_ID means and what to do: `journalctl -x`, after `journalctl --update-catalog`.
      "L+ /usr/local/lib/systemd/catalog/dsv41.catalog - - - - ${./dsv41.catalog}"
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
