# What the Makefile needs and a NixOS machine does not have at hand. Python packages come from the Makefile's own
# environments, so that `make` does the same here as anywhere else.
{ pkgs, ... }:
{
  default = pkgs.mkShell {
    packages = [
      pkgs.python312
      pkgs.gnumake
      pkgs.gcc
      pkgs.git
      pkgs.nixfmt
      pkgs.ruff
    ];
  };
}
