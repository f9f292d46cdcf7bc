# `nix run .#doctor`: looks at this machine and its fleet. `nix run .#demo`: the small fleet, in a checkout: it builds
# itself an environment with the real SGLang on CPU beside it.
{ self, ... }:
{ pkgs, ... }:
let
  inherit (pkgs) lib;
  inherit (self.packages.${pkgs.stdenv.hostPlatform.system}) supervisor;
  app = description: command: {
    type = "app";
    program = "${
      pkgs.writeShellScript "dsv41-${description}" ''exec ${lib.getExe supervisor} ${command} "$@"''
    }";
    meta.description = "dsv41 ${command}";
  };
in
{
  doctor = app "doctor" "doctor";
  demo = app "demo" ''demo --source "$PWD"'';
}
