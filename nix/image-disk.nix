# The disk that lib.image makes, for the systems that are switched to on it later. Leave it out with disks of your own.
{ lib, ... }:
{
  fileSystems."/" = {
    device = "/dev/disk/by-label/nixos";
    fsType = "ext4";
    autoResize = true;
  };
  fileSystems."/boot" = {
    device = "/dev/disk/by-label/ESP";
    fsType = "vfat";
  };
  boot.growPartition = true;
  boot.loader.systemd-boot.enable = true;
  # The firmware finds a disk's default loader by itself; its variables are not ours to fill.
  boot.loader.efi.canTouchEfiVariables = false;
  # Without the first a Spark does not see the stick that it boots from (graham33/nixos-dgx-spark#7).
  boot.initrd.availableKernelModules = [
    "xhci_plat_hcd"
    "usb_storage"
    "uas"
    "nvme"
  ];
  system.stateVersion = lib.mkDefault "26.05";
}
