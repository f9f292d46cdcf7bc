# The three distributions. The supervisor's closure and the engine's are apart on purpose: host memory is GPU memory on
# a Spark, and nothing of torch belongs into a daemon that always runs.
{ pkgs }:
let
  # 3.12 is the Python of SGLang's aarch64 wheels; one Python for both sides keeps the row store's extension the same.
  python = pkgs.python312;
  rowstore = python.pkgs.callPackage ./rowstore.nix { };
  adapters = python.pkgs.callPackage ./adapters.nix { };
  supervisor = python.pkgs.callPackage ./supervisor.nix { inherit adapters rowstore; };
in
{
  inherit supervisor adapters rowstore;
  default = supervisor;
}
