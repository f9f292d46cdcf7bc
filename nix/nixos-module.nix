# The modules together with the packages of this flake, so that all machines of a fleet run the same bits whatever
# nixpkgs they are built from.
self:
{ lib, pkgs, ... }:
{
  key = "dsv41#nixosModules.default";
  imports = [ ../modules ];
  services.dsv41.package =
    lib.mkDefault
      self.packages.${pkgs.stdenv.hostPlatform.system}.supervisor;
}
