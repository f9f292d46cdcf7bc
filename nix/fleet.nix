# lib.fleet { fleet = ./fleet.nix; modules = [ ./hardware.nix ]; } → one NixOS system for each node, by node name.
#
# `fleet` is the one file all machines share; `modules` is what else a machine is. Every system is enabled, and gets its
# node's name as host name, so `nixos-rebuild switch --flake .` picks the right one on each machine.
{ self, nixpkgs, ... }:
{
  fleet,
  modules ? [ ],
}:
let
  system =
    extra:
    nixpkgs.lib.nixosSystem {
      modules = [
        self.nixosModules.default
        fleet
        { nixpkgs.hostPlatform = nixpkgs.lib.mkDefault "aarch64-linux"; }
      ]
      ++ modules
      ++ extra;
    };
  # Evaluated only as far as the nodes' names.
  nodes = (system [ ]).config.services.dsv41.settings.fleet.nodes;
in
builtins.mapAttrs (
  name: _:
  system [
    (
      { config, ... }:
      {
        networking.hostName = nixpkgs.lib.mkDefault name;
        services.dsv41.enable = nixpkgs.lib.mkDefault true;
        assertions = [
          {
            assertion = config.services.dsv41.node == name;
            message = "lib.fleet: the system of ${name} says that it is ${config.services.dsv41.node} (services.dsv41.node). Take networking.hostName and services.dsv41.node out of what all nodes share.";
          }
        ];
      }
    )
  ]
) nodes
