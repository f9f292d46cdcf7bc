# IPv4 addresses with prefix length, for what can be refused before anything is built.
{ lib }:
rec {
  octet = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  addressPattern = "(${octet}\\.){3}${octet}";
  interfacePattern = "${addressPattern}/(3[0-2]|[12]?[0-9])";

  # "10.0.12.1/24" → "10.0.12.1"
  address = interface: builtins.head (lib.splitString "/" interface);

  # "10.0.12.1/24" → "24"
  prefix = interface: lib.last (lib.splitString "/" interface);

  # How many addresses the network has.
  size = interface: lib.foldl' (n: _: n * 2) 1 (lib.range 1 (32 - lib.toInt (prefix interface)));

  number =
    interface:
    lib.foldl' (n: part: n * 256 + lib.toInt part) 0 (lib.splitString "." (address interface));

  # "10.0.12.1/24" → "10.0.12.0/24"
  network =
    interface:
    let
      first = (number interface / size interface) * size interface;
      part = shift: toString (lib.mod (first / shift) 256);
    in
    "${part 16777216}.${part 65536}.${part 256}.${part 1}/${prefix interface}";

  # Whether a machine can have it: the first address names the network and the last all in it, where there are more
  # than two.
  isHost =
    interface:
    let
      place = lib.mod (number interface) (size interface);
    in
    size interface <= 2 || (place != 0 && place != size interface - 1);
}
