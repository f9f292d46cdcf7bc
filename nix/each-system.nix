# One attribute per system that we build for: Sparks are aarch64, developers and CI are mostly x86_64.
nixpkgs: f:
nixpkgs.lib.genAttrs [ "aarch64-linux" "x86_64-linux" ] (
  system:
  f {
    pkgs = nixpkgs.legacyPackages.${system};
    sparkPkgs = nixpkgs.legacyPackages.aarch64-linux;
  }
)
