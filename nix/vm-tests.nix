# Every file in tests/vm as a check, `vm-<name>`: machines that boot. Needs KVM on the builder.
inputs: pkgs:
let
  inherit (pkgs) lib;
  folder = ../tests/vm;
in
lib.mapAttrs' (
  file: _:
  lib.nameValuePair "vm-${lib.removeSuffix ".nix" file}" (
    import (folder + "/${file}") {
      inherit (inputs) self;
      inherit pkgs;
    }
  )
) (lib.filterAttrs (file: _: lib.hasSuffix ".nix" file) (builtins.readDir folder))
