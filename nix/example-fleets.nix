# Every file in tests/fleets as NixOS systems, `<fleet>-<node>`: what the README shows is what the checks evaluate.
{ self, nixpkgs, ... }:
let
  inherit (nixpkgs) lib;
  machine = {
    # Enough to evaluate a system without naming hardware; a real machine brings its own disks and boot loader.
    boot.loader.grub.enable = false;
    fileSystems."/" = {
      device = "none";
      fsType = "tmpfs";
    };
    system.stateVersion = "26.05";
  };
  systems =
    file:
    lib.mapAttrs' (node: system: lib.nameValuePair "${lib.removeSuffix ".nix" file}-${node}" system) (
      self.lib.fleet {
        fleet = ../tests/fleets + "/${file}";
        modules = [ machine ];
      }
    );
in
lib.foldl' (all: file: all // systems file) { } (
  builtins.attrNames (builtins.readDir ../tests/fleets)
)
