# The three distributions and the engine. The supervisor's closure and the engine's are apart on purpose: host memory is
# GPU memory on a Spark, and nothing of torch belongs into a daemon that always runs.
#
# `sparkPkgs` is nixpkgs for aarch64: an engine is a Spark's whatever machine asks for it, so that `nix build .#engine` on
# a laptop builds it through a builder of that kind.
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
  spark = ours sparkPkgs;
in
ours pkgs
// {
  default = (ours pkgs).supervisor;

  engine = import ./engine {
    inherit (sparkPkgs) lib stdenv;
    inherit (spark) rowstore;
    python = sparkPkgs.python312;
  };
}
