# nixos/lib/make-disk-image.nix by its arguments: a derivation that depends on the system that it would hold.
{
  config,
  lib,
  pkgs,
  name,
  label,
  format,
  partitionTableType,
  diskSize,
  additionalSpace,
  bootSize,
  copyChannel,
}:
pkgs.runCommand name {
  inherit
    label
    format
    partitionTableType
    diskSize
    additionalSpace
    bootSize
    copyChannel
    ;
  system = config.system.build.toplevel;
} ""
