# Stage 4, pack: this rank's Engram rows, from the checkpoint onto local NVMe. Run by the supervisor before a rank, or by
# hand (`systemctl start dsv41-pack`); rows that are there and good are left alone.
{
  config,
  lib,
  utils,
  ...
}@args:
let
  cfg = config.services.dsv41;
  node = import ./node.nix args;
  directory = node.path cfg.settings.pack.directory;
  checkpoint = node.path cfg.settings.checkpoint.path;
in
{
  config = lib.mkIf cfg.enable {
    systemd.services.dsv41-pack = {
      description = "Pack the Engram rows of rank ${toString node.this.rank}";
      unitConfig.RequiresMountsFor = [
        checkpoint
        directory
      ];
      restartIfChanged = false;
      stopIfChanged = false;

      serviceConfig = node.hardening // {
        Type = "oneshot";
        ExecStart = node.exec "pack" [ ];
        User = "dsv41";
        Group = "dsv41";
        # About 63 GiB a node at TP3 and 47 GiB at TP4; the drive decides how long that takes.
        TimeoutStartSec = "infinity";
        Nice = 10;
        IOSchedulingClass = "best-effort";
        IOSchedulingPriority = 7;
        OOMScoreAdjust = 500;
        PrivateDevices = true;
        ProtectClock = true;
        PrivateNetwork = true;
        ReadWritePaths = [
          directory
          (node.path cfg.settings.supervisor.run_dir)
        ];
        LogExtraFields = node.logFields [
          "DSV41_STAGE=pack"
          "DSV41_RANK=${toString node.this.rank}"
        ];
        SyslogIdentifier = "dsv41-pack";
      };
    };

    systemd.tmpfiles.rules = [ "d ${directory} 0750 dsv41 dsv41 -" ];
  };
}
