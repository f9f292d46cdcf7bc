# Stand-in for graham33/nixos-dgx-spark: its option, and nothing behind it.
{ lib, ... }:
{
  options.hardware.dgx-spark.enable = lib.mkEnableOption "DGX Spark hardware support";
}
