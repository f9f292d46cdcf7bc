{
  description = "DeepSeek-V4.1-Flash on three or four DGX Sparks, as declared machines";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs =
    { self, nixpkgs }:
    let
      eachSystem = import ./nix/each-system.nix nixpkgs;
    in
    {
      lib.fleet = import ./nix/fleet.nix { inherit self nixpkgs; };
      nixosModules.default = import ./nix/nixos-module.nix self;
      nixosConfigurations = import ./nix/example-fleets.nix { inherit self nixpkgs; };
      packages = eachSystem (import ./nix/packages.nix);
      checks = eachSystem ({ pkgs, ... }: import ./nix/checks.nix { inherit self pkgs; });
      devShells = eachSystem ({ pkgs, ... }: import ./nix/dev-shells.nix { inherit pkgs; });
      formatter = eachSystem ({ pkgs, ... }: pkgs.nixfmt-tree);
    };
}
