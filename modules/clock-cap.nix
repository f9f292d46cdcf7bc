# The GPU's clock, capped. Sparks under long load have switched themselves off; 2000 to 2200 MHz ended that and cost a few
# per cent (facts: mia2x#146; the validated 4-node fleet ran at 2200). The driver forgets it when it is loaded anew.
{
  config,
  lib,
  utils,
  ...
}@args:
let
  cfg = config.services.dsv41;
  node = import ./node.nix args;
  capped = cfg.enable && cfg.clockCapMhz != null;
in
{
  options.services.dsv41.clockCapMhz = lib.mkOption {
    type = lib.types.nullOr (lib.types.ints.between 500 3000);
    default = null;
    example = 2200;
    description = "Highest clock of the GPU in MHz, set again every five minutes; null leaves it to the driver. Without a cap a Spark may switch itself off under long load; below 2000 decoding gets slower.";
  };

  config = lib.mkIf capped {
    systemd.services.dsv41-clock-cap = {
      description = "Cap the GPU's clock at ${toString cfg.clockCapMhz} MHz";
      before = [ "dsv41-rank@${toString node.this.rank}.service" ];
      serviceConfig = node.hardening // {
        Type = "oneshot";
        # The driver's own, which must be that of the running kernel.
        ExecStart = "/run/current-system/sw/bin/nvidia-smi ${
          utils.escapeSystemdExecArgs [
            "--lock-gpu-clocks=0,${toString cfg.clockCapMhz}"
          ]
        }";
        TimeoutStartSec = 30;
        PrivateNetwork = true;
        LogExtraFields = node.logFields [ "DSV41_STAGE=engine" ];
        SyslogIdentifier = "dsv41-clock-cap";
      };
    };

    systemd.timers.dsv41-clock-cap = {
      description = "Cap the GPU's clock again";
      wantedBy = [ "timers.target" ];
      timerConfig = {
        OnBootSec = "30s";
        OnUnitActiveSec = "5min";
      };
    };
  };
}
