# pkgs.dsv41.{supervisor,adapters,rowstore,engine,…}, built from the nixpkgs that the overlay is applied to.
inputs: final: _: {
  dsv41 = import ./packages.nix inputs {
    pkgs = final;
    sparkPkgs =
      if final.stdenv.hostPlatform.system == "aarch64-linux" then
        final
      else
        inputs.nixpkgs.legacyPackages.aarch64-linux;
  };
}
