{
  description = "Stand-in for nixpkgs: what our flake uses of it, so that the flake evaluates where nixpkgs is not";

  outputs =
    { self }:
    let
      lib = import ./lib;
      systems = [
        "aarch64-linux"
        "x86_64-linux"
      ];
      nixosSystem = import ./nixos.nix { inherit lib legacyPackages; };
      legacyPackages = lib.genAttrs systems (system: import ./packages.nix { inherit lib nixosSystem system; });
    in
    {
      inherit legacyPackages;
      lib = lib // {
        inherit nixosSystem;
      };
    };
}
