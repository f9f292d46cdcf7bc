# systemd.services and tmpfiles: names and types as in nixos/lib/systemd-unit-options.nix, text as in systemd-lib.nix.
{ config, lib, ... }:
let
  inherit (lib) mkOption types;
  option =
    type: default:
    mkOption {
      inherit type default;
      description = "As in NixOS.";
    };

  atom = types.oneOf [
    types.bool
    types.int
    types.float
    types.str
    types.path
    types.package
  ];
  # A key of a unit file: one value, or one line for each of a list.
  sectionType = types.attrsOf (
    types.either atom (types.listOf atom)
  );
  unitName = types.strMatching "[a-zA-Z0-9@%:_.\\-]+[.](service|socket|device|mount|automount|swap|target|path|timer|scope|slice)";

  unitLists = {
    requires = "Requires";
    wants = "Wants";
    after = "After";
    before = "Before";
    bindsTo = "BindsTo";
    partOf = "PartOf";
    conflicts = "Conflicts";
    requisite = "Requisite";
    onFailure = "OnFailure";
    upholds = "Upholds";
  };

  service =
    { config, ... }:
    {
      options = {
        description = option types.str "";
        documentation = option (types.listOf types.str) [ ];
        wantedBy = option (types.listOf unitName) [ ];
        requiredBy = option (types.listOf unitName) [ ];
        unitConfig = option sectionType { };
        serviceConfig = option sectionType { };
        environment = option (types.attrsOf (types.nullOr atom)) { };
        path = option (types.listOf types.package) [ ];
        restartIfChanged = option types.bool true;
        reloadIfChanged = option types.bool false;
        stopIfChanged = option types.bool true;
        startLimitIntervalSec = option (types.nullOr types.int) null;
        startLimitBurst = option (types.nullOr types.int) null;
        overrideStrategy = option (types.enum [
          "asDropinIfExists"
          "asDropin"
        ]) "asDropinIfExists";
      }
      // lib.mapAttrs (_: _: option (types.listOf unitName) [ ]) unitLists;

      config.unitConfig = lib.mkMerge [
        (lib.mkIf (config.description != "") { Description = config.description; })
        (lib.mkIf (config.documentation != [ ]) { Documentation = toString config.documentation; })
        (lib.mkIf (config.startLimitIntervalSec != null) {
          StartLimitIntervalSec = toString config.startLimitIntervalSec;
        })
        (lib.mkMerge (
          lib.mapAttrsToList (
            name: key: lib.mkIf (config.${name} != [ ]) { ${key} = toString config.${name}; }
          ) unitLists
        ))
      ];
    };

  timer.options = {
    description = option types.str "";
    wantedBy = option (types.listOf unitName) [ ];
    timerConfig = option sectionType { };
  };
  timerText = unit: ''
    [Unit]
    Description=${unit.description}

    [Timer]
    ${section unit.timerConfig}${install unit}'';

  show = value: if lib.isBool value then lib.toJSON value else toString value;
  section =
    keys:
    lib.concatMapStringsSep "" (
      name:
      let
        values = if lib.isList keys.${name} then keys.${name} else [ keys.${name} ];
      in
      lib.concatMapStringsSep "" (value: "${name}=${show value}\n") values
    ) (lib.attrNames keys);

  flags =
    unit:
    lib.optionalString unit.reloadIfChanged "X-ReloadIfChanged=true\n"
    + lib.optionalString (!unit.restartIfChanged) "X-RestartIfChanged=false\n"
    + lib.optionalString (!unit.stopIfChanged) "X-StopIfChanged=false\n";
  environment =
    variables:
    lib.concatMapStringsSep "" (
      name:
      lib.optionalString (
        variables.${name} != null
      ) "Environment=${lib.toJSON "${name}=${toString variables.${name}}"}\n"
    ) (lib.attrNames variables);
  install =
    unit:
    lib.optionalString (
      unit.wantedBy != [ ]
    ) "\n[Install]\nWantedBy=${toString unit.wantedBy}\n";

  unitText = unit: ''
    [Unit]
    ${section unit.unitConfig}
    [Service]
    ${environment unit.environment}${flags unit}${section unit.serviceConfig}${install unit}'';
in
{
  options.systemd.services = option (types.attrsOf (types.submodule service)) { };
  options.systemd.timers = option (types.attrsOf (types.submodule timer)) { };
  options.systemd.units = option (types.attrsOf types.raw) { };
  options.systemd.tmpfiles.rules = option (types.listOf types.str) [ ];

  config.systemd.units =
    lib.mapAttrs' (
      name: unit:
      lib.nameValuePair "${name}.service" {
        inherit (unit) wantedBy overrideStrategy;
        text = unitText unit;
      }
    ) config.systemd.services
    // lib.mapAttrs' (
      name: unit:
      lib.nameValuePair "${name}.timer" {
        inherit (unit) wantedBy;
        text = timerText unit;
      }
    ) config.systemd.timers;
}
