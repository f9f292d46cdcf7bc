# The modules together with the packages of this flake, so that all machines of a fleet run the same bits whatever
# nixpkgs they are built from.
self:
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
}
