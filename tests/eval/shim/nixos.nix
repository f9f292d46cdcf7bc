# lib.nixosSystem with the NixOS options that our modules set, and unit and network files as NixOS writes them.
{ lib, legacyPackages }:
{
  modules,
  specialArgs ? { },
}:
let
  system = lib.evalModules {
    modules = [
      ./nixos/options.nix
      ./nixos/systemd.nix
      ./nixos/networkd.nix
      ./nixos/toplevel.nix
      (
        { config, ... }:
        {
          config._module.args.pkgs = legacyPackages.${config.nixpkgs.hostPlatform};
        }
      )
    ]
    ++ modules;
    specialArgs = specialArgs // {
      utils = import ./nixos/utils.nix { inherit lib; };
    };
  };
in
system // { pkgs = legacyPackages.${system.config.nixpkgs.hostPlatform}; }
