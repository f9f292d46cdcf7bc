{
  description = "DeepSeek-V4.1-Flash on three or four DGX Sparks, as declared machines";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
  # Only nixosModules.spark-hardware and the image use it; without its own inputs, it is 288 files.
  inputs.nixos-dgx-spark.url = "github:graham33/nixos-dgx-spark";
  inputs.nixos-dgx-spark.flake = false;

  outputs =
    inputs@{ self, nixpkgs, ... }:
    let
      eachSystem = import ./nix/each-system.nix nixpkgs;
    in
    {
      lib = import ./nix/lib.nix inputs;
      nixosModules = import ./nix/nixos-modules.nix inputs;
      nixosConfigurations = import ./nix/example-fleets.nix inputs;
      overlays.default = import ./nix/overlay.nix inputs;
      packages = eachSystem (import ./nix/packages.nix inputs);
      apps = eachSystem (import ./nix/apps.nix inputs);
      checks = eachSystem (import ./nix/checks.nix inputs);
      devShells = eachSystem (import ./nix/dev-shells.nix);
      formatter = eachSystem ({ pkgs, ... }: pkgs.nixfmt-tree);
    };
}
