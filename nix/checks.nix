# `nix flake check`: the packages build, the committed schema is the program's own, every example fleet is one that the
# program accepts, and every adapter fits the pinned wheel of SGLang. The NixOS systems themselves are evaluated by flake check.
inputs@{ self, ... }:
{ pkgs, ... }:
let
  inherit (pkgs) lib;
  packages = self.packages.${pkgs.stdenv.hostPlatform.system};
  dsv41 = lib.getExe packages.supervisor;

  settingsAreAccepted =
    name: system:
    pkgs.runCommand "dsv41-check-config-${name}"
      {
        settings = builtins.toJSON system.config.services.dsv41.settings;
        passAsFile = [ "settings" ];
      }
      ''
        ${dsv41} check-config "$settingsPath"
        touch "$out"
      '';
in
{
  inherit (packages) supervisor adapters rowstore;

  settings-schema =
    pkgs.runCommand "dsv41-settings-schema-is-fresh" { committed = ../modules/settings.schema.json; }
      ''
        ${dsv41} schema | diff -u "$committed" - || {
          echo "modules/settings.schema.json is stale. Run: make schema" >&2
          exit 1
        }
        touch "$out"
      '';

  # The wheel is only read, so this needs neither a Spark nor its other wheels.
  adapters-fit =
    pkgs.runCommand "dsv41-adapters-fit" { wheel = packages.engine.wheels.sglang.src; }
      ''
        ${dsv41} adapters fit --engine "$wheel"
        touch "$out"
      '';
}
// import ./vm-tests.nix inputs pkgs
// lib.mapAttrs' (
  name: system: lib.nameValuePair "settings-of-${name}" (settingsAreAccepted name system)
) self.nixosConfigurations
