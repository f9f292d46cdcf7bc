# lib.image { fleet; node; modules } → a raw disk with that node's whole system: firmware starts it, `nixos-rebuild
# switch` changes it later. Written to a USB stick or straight to the drive, it grows to the size it finds.
#
# The file is `nixos.img` in the result: what NixOS's own builder calls a raw disk (nixos/lib/make-disk-image.nix,
# `baseName`). No weights and no keys are in it. `modules` is where people get in (users, ssh keys); without them nobody
# can.
{ self, nixpkgs, ... }:
{
  fleet,
  node,
  modules ? [ ],
}:
let
  systems = self.lib.fleet {
    inherit fleet;
    modules = [
      self.nixosModules.spark-hardware
      self.nixosModules.image-disk
    ]
    ++ modules;
  };
  system =
    systems.${node}
      or (throw "lib.image: ${node} is not a node of the fleet (${nixpkgs.lib.concatStringsSep ", " (builtins.attrNames systems)}). Name one of them.");
in
import "${nixpkgs}/nixos/lib/make-disk-image.nix" {
  inherit (system) config pkgs;
  inherit (nixpkgs) lib;
  name = "dsv41-image-${node}";
  label = "nixos";
  format = "raw";
  partitionTableType = "efi";
  diskSize = "auto";
  # Holds kernel and initrd of every generation that a rollback can boot, and cannot grow later as the root does. Twice
  # what nixos-dgx-spark takes (512 MiB); the builder's own 256 MiB would be full after few (guess; never measured).
  bootSize = "1G";
  # A fleet is built from its flake, which names its own nixpkgs; half a gigabyte of sources would never be read.
  copyChannel = false;
  # For the first days; the disk grows at the first boot.
  additionalSpace = "4G";
}
