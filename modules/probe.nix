# What `dsv41 doctor --deep` runs in the engine's environment: one short program, as the rank's user, with its devices.
# Started by the supervisor alone, which leaves the request in the run directory.
{
  config,
  lib,
  utils,
  ...
}@args:
let
  cfg = config.services.dsv41;
  node = import ./node.nix args;
in
{
  config = lib.mkIf cfg.enable {
    systemd.services.dsv41-probe = {
      description = "dsv41 doctor's program in the engine's environment";
      restartIfChanged = false;
      stopIfChanged = false;
      startLimitIntervalSec = 0;

      serviceConfig = node.hardening // {
        Type = "oneshot";
        ExecStart = node.exec "probe" [ ];
        User = "dsv41";
        Group = "dsv41";
        # The supervisor ends it after the seconds that were asked for; this is the last resort.
        TimeoutStartSec = 900;
        LimitMEMLOCK = "infinity";
        LimitNOFILE = 1048576;
        LimitCORE = 0;
        OOMScoreAdjust = 500;
        CacheDirectory = "dsv41/engine";
        ReadWritePaths = [ "${node.path cfg.settings.supervisor.run_dir}/probe" ];
        LogExtraFields = node.logFields [
          "DSV41_STAGE=fabric"
          "DSV41_RANK=${toString node.this.rank}"
        ];
        SyslogIdentifier = "dsv41-probe";
      };
    };
  };
}
