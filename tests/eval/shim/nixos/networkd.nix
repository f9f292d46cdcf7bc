# systemd.network: the link matches, addresses and settings that fabric.nix declares, as .network files.
{ config, lib, ... }:
let
  inherit (lib) mkOption types;
  option =
    type: default:
    mkOption {
      inherit type default;
      description = "As in NixOS.";
    };
  sectionType = types.attrsOf (
    types.oneOf [
      types.bool
      types.int
      types.str
    ]
  );
  network.options = {
    matchConfig = option sectionType { };
    linkConfig = option sectionType { };
    networkConfig = option sectionType { };
    address = option (types.listOf types.str) [ ];
    extraConfig = option types.lines "";
  };

  show = value: if lib.isBool value then lib.toJSON value else toString value;
  section =
    name: keys: more:
    lib.optionalString (keys != { } || more != "") ''
      [${name}]
      ${lib.concatMapStringsSep "" (key: "${key}=${show keys.${key}}\n") (lib.attrNames keys)}${more}'';
in
{
  options.systemd.network = {
    enable = option types.bool false;
    networks = option (types.attrsOf (types.submodule network)) { };
    units = option (types.attrsOf types.raw) { };
    wait-online.timeout = option types.int 120;
  };

  config.systemd.network.units = lib.mapAttrs' (
    name: net:
    lib.nameValuePair "${name}.network" {
      text = lib.concatStringsSep "\n" (
        [
          (section "Match" net.matchConfig "")
          (section "Link" net.linkConfig "")
          (section "Network" net.networkConfig (
            lib.concatMapStringsSep "" (address: "Address=${address}\n") net.address
          ))
        ]
        ++ lib.optional (net.extraConfig != "") net.extraConfig
      );
    }
  ) config.systemd.network.networks;
}
