# What a machine's own flake imports.
{ self, nixos-dgx-spark, ... }:
{
  # The modules together with the packages of this flake, so that all machines of a fleet run the same bits whatever
  # nixpkgs they are built from.
  default =
    { lib, pkgs, ... }:
    let
      inherit (pkgs.stdenv.hostPlatform) system;
    in
    {
      key = "dsv41#nixosModules.default";
      imports = [ ../modules ];
      services.dsv41.package = lib.mkDefault self.packages.${system}.supervisor;
      # The engine's wheels are a Spark's. Another machine names a Python of its own.
      services.dsv41.enginePackage = lib.mkIf (system == "aarch64-linux") (
        lib.mkDefault self.packages.${system}.engine
      );
    };

  # The modules alone: `services.dsv41.package` is yours to set.
  modules = ../modules;

  # The Spark itself (NVIDIA's kernel and driver), by graham33/nixos-dgx-spark. Leave it out if you have your own.
  spark-hardware =
    { lib, ... }:
    {
      key = "dsv41#nixosModules.spark-hardware";
      imports = [ "${nixos-dgx-spark}/modules/dgx-spark.nix" ];
      hardware.dgx-spark.enable = lib.mkDefault true;
      # NVIDIA's driver and CUDA; nothing else that is unfree is built here.
      nixpkgs.config.allowUnfree = lib.mkDefault true;
    };

  # With lib.image: what `nixos-rebuild switch` needs to know of the disk.
  image-disk = ./image-disk.nix;
}
