# Stages 5 and 6, rank and engine: `systemctl start dsv41-rank@0` on the head starts the fleet.
#
# One template, because a rank's number is the fleet's and not the machine's: `journalctl -u 'dsv41-rank@*'` reads the
# same everywhere. The process itself refuses a number that is not this node's.
{
  config,
  lib,
  utils,
  ...
}@args:
let
  cfg = config.services.dsv41;
  node = import ./node.nix args;
  inherit (cfg.settings)
    checkpoint
    pack
    supervisor
    ;
in
{
  config = lib.mkIf cfg.enable {
    systemd.services."dsv41-rank@" = {
      description = "DeepSeek-V4.1-Flash, rank %i of ${toString node.worldSize}";
      # Ordered after its supervisor but not bound to it: a supervisor that is restarted adopts the rank that runs.
      wants = [ "dsv41-supervisor.service" ];
      after = [
        "dsv41-supervisor.service"
        "dsv41-pack.service"
      ];
      # How often it may be started is the supervisor's decision (settings.recovery).
      startLimitIntervalSec = 0;
      unitConfig.RequiresMountsFor = map node.path [
        checkpoint.path
        pack.directory
      ];

      # A switch never restarts a rank: restarting one stops all of them, and a boot takes minutes.
      restartIfChanged = false;
      stopIfChanged = false;

      environment = {
        HOME = "/var/cache/dsv41/engine";
        PYTHONUNBUFFERED = "1";
      };

      serviceConfig = node.hardening // {
        Type = "notify";
        NotifyAccess = "main";
        ExecStart = node.exec "rank" [ "%i" ];
        User = "dsv41";
        Group = "dsv41";

        # Bringing a fleet back is the supervisor's decision alone: all ranks stop, then start in order.
        Restart = "no";
        # Loading is judged by progress (settings.engine.stall), not by the clock; a first boot compiles kernels.
        TimeoutStartSec = "infinity";
        # Longer than the polite stop the supervisor asks for, so that systemd is the last resort.
        TimeoutStopSec = cfg.settings.recovery.stop_timeout_s + 10;
        KillMode = "mixed";
        # The main process ends by itself when its lease runs out; one that cannot even do that is ended by systemd.
        WatchdogSec = supervisor.lease_ttl_s + 10;

        # Registered memory is locked memory: with the default limit ibv_reg_mr fails with ENOMEM here, and the peer is
        # blamed for a closed connection.
        LimitMEMLOCK = "infinity";
        # The first all-gather opens more files and sockets than the default allows.
        LimitNOFILE = 1048576;
        LimitCORE = 0;
        # If memory runs out all the same, the kernel takes the rank and not the supervisor or sshd.
        OOMScoreAdjust = 500;

        CacheDirectory = "dsv41/engine";
        LoadCredential = [ "fleet-key:${node.path cfg.settings.fleet.key_file}" ];
        SetCredential = [ "fleet-key:-" ];
        # With "-": for a number that is not this node's the program says so, not the sandbox.
        ReadWritePaths = [ "-${node.path supervisor.run_dir}/rank-%i" ];
        LogExtraFields = node.logFields [ "DSV41_RANK=%i" ];
        SyslogIdentifier = "dsv41-rank-%i";
      };
    };
  };
}
