# IPv4 addresses with prefix length, for what can be refused before anything is built.
{ lib }:
rec {
  octet = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  addressPattern = "(${octet}\\.){3}${octet}";
  interfacePattern = "${addressPattern}/(3[0-2]|[12]?[0-9])";

  # "10.0.12.1/24" → "10.0.12.1"
  address = interface: builtins.head (lib.splitString "/" interface);

  # "10.0.12.1/24" → "10.0.12.0/24"
  network =
    interface:
    let
      parts = lib.splitString "/" interface;
      bits = lib.toInt (lib.last parts);
      number = lib.foldl' (n: part: n * 256 + lib.toInt part) 0 (
        lib.splitString "." (builtins.head parts)
      );
      hostSize = lib.foldl' (n: _: n * 2) 1 (lib.range 1 (32 - bits));
      first = (number / hostSize) * hostSize;
      part = shift: toString (lib.mod (first / shift) 256);
    in
    "${part 16777216}.${part 65536}.${part 256}.${part 1}/${toString bits}";
}
