# `nixos-rebuild switch` is refused while a rank runs that the new system would change; switch_check.py says what to do.
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
in
{
  config = lib.mkIf cfg.enable {
    # Called with the new system and what is to be done with it. NIXOS_NO_CHECK=1 leaves all such checks out.
    system.preSwitchChecks.dsv41-rank = ''
      ${pkgs.python312.interpreter} ${./switch_check.py} --node ${node.name} --rank ${toString node.this.rank} --head ${node.headName} "$1" "''${2-switch}"
    '';
  };
}
