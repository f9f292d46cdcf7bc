# lib.fleet: one file → a NixOS system for each node. lib.image: a disk with one of them.
inputs: {
  fleet = import ./fleet.nix inputs;
  image = import ./image.nix inputs;
}
