# The memory guard of every node: a process of its own, so that it neither starves with the supervisor nor restarts with
# it. It kills a rank by pid before memory runs out: a Spark without memory hangs until someone pulls its power cord.
{
  config,
  lib,
  utils,
  ...
}@args:
let
  cfg = config.services.dsv41;
  node = import ./node.nix args;
  supervisorUnit = config.systemd.services.dsv41-supervisor.serviceConfig;
in
{
  config = lib.mkIf cfg.enable {
    systemd.services.dsv41-supervisor = {
      wants = [ "dsv41-guard.service" ];
      after = [ "dsv41-guard.service" ];
    };

    systemd.services.dsv41-guard = {
      description = "dsv41 memory guard of ${node.name}";
      wantedBy = [ "multi-user.target" ];
      # It has no business giving up, however often it was restarted.
      startLimitIntervalSec = 0;

      serviceConfig = node.hardening // {
        Type = "exec";
        ExecStart = node.exec "guard" [ ];
        Restart = "always";
        RestartSec = 1;
        # 78: misconfigured. Starting again would say the same thing again.
        RestartPreventExitStatus = 78;

        # The supervisor's user: its socket is in the supervisor's state directory, and only that user may speak to it.
        User = supervisorUnit.User or "root";
        Group = supervisorUnit.Group or "root";
        # Kill ranks of another user, keep its own memory locked, run before them, and read the kernel's log.
        CapabilityBoundingSet = [
          "CAP_IPC_LOCK"
          "CAP_KILL"
          "CAP_SYSLOG"
          "CAP_SYS_NICE"
        ];
        AmbientCapabilities = [
          "CAP_IPC_LOCK"
          "CAP_KILL"
          "CAP_SYSLOG"
          "CAP_SYS_NICE"
        ];
        LimitMEMLOCK = "infinity";
        OOMScoreAdjust = -1000;
        ManagedOOMPreference = "omit";

        PrivateNetwork = true;
        ReadWritePaths = [ (node.path cfg.settings.supervisor.state_dir) ];
        LogExtraFields = node.logFields [ "DSV41_RANK=${toString node.this.rank}" ];
        SyslogIdentifier = "dsv41-guard";
      };
    };
  };
}
