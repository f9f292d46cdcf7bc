# The three distributions, the engine, and what is made of them. The supervisor's closure and the engine's are apart on
# purpose: host memory is GPU memory on a Spark, and nothing of torch belongs into a daemon that always runs.
#
# `sparkPkgs` is nixpkgs for aarch64: an engine or an image is a Spark's whatever machine asks for it, so that `nix build
# .#image` on a laptop builds it through a builder of that kind.
{ self, ... }:
{ pkgs, sparkPkgs }:
let
  # 3.12 is the Python of SGLang's aarch64 wheels; one Python for both sides keeps the row store's extension the same.
  ours =
    pkgs:
    let
      python = pkgs.python312;
      rowstore = python.pkgs.callPackage ./rowstore.nix { };
      adapters = python.pkgs.callPackage ./adapters.nix { };
      supervisor = python.pkgs.callPackage ./supervisor.nix { inherit adapters rowstore; };
    in
    {
      inherit supervisor adapters rowstore;
    };
  here = ours pkgs;
  engine = import ./engine {
    inherit (sparkPkgs) lib stdenv;
    inherit (ours sparkPkgs) rowstore;
    python = sparkPkgs.python312;
  };
in
here
// {
  default = here.supervisor;
  inherit engine;
  oci = sparkPkgs.callPackage ./oci.nix { inherit engine; };

  # An example: yours is lib.image with your fleet file and your ssh keys.
  image = self.lib.image {
    fleet = ../tests/fleets/triangle-3.nix;
    node = "spark1";
  };
}
