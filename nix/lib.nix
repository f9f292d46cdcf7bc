# lib.fleet: one file → a NixOS system for each node. lib.image: a disk with one of them; lib.images: all of them by
# `image-<node>`.
inputs@{ self, nixpkgs, ... }: {
  fleet = import ./fleet.nix inputs;
  image = import ./image.nix inputs;
  images =
    args:
    nixpkgs.lib.mapAttrs' (
      node: _: nixpkgs.lib.nameValuePair "image-${node}" (self.lib.image (args // { inherit node; }))
    ) (self.lib.fleet args);
}
