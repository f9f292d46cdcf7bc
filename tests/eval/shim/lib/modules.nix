# The module system as far as our modules use it: options, definitions with conditions, priorities and order, submodules.
# Messages begin as those of nixpkgs do, so that a test may look for them under both.
basics:
let
  b = builtins;
  inherit (basics)
    attrNames
    concatMap
    elem
    filter
    foldl'
    isAttrs
    isFunction
    last
    length
    optional
    ;

  showOption = b.concatStringsSep ".";
  isType = name: value: isAttrs value && value._type or null == name;

  mkOption = attrs: attrs // { _type = "option"; };
  mkEnableOption =
    name:
    mkOption {
      type = types.bool;
      default = false;
      example = true;
      description = "Whether to enable ${name}.";
    };
  mkIf = condition: content: {
    _type = "if";
    inherit condition content;
  };
  mkMerge = contents: {
    _type = "merge";
    inherit contents;
  };
  mkOverride = priority: content: {
    _type = "override";
    inherit priority content;
  };
  mkOrder = priority: content: {
    _type = "order";
    inherit priority content;
  };
  mkOptionDefault = mkOverride 1500;
  mkDefault = mkOverride 1000;
  mkForce = mkOverride 50;

  # Properties around a set of definitions move onto each of its attributes, so that a condition is only looked at when
  # one of them is.
  pushDown =
    value:
    if isType "merge" value then
      concatMap pushDown value.contents
    else if isType "if" value then
      map (b.mapAttrs (_: mkIf value.condition)) (pushDown value.content)
    else if isType "override" value then
      map (b.mapAttrs (_: mkOverride value.priority)) (pushDown value.content)
    else
      [ value ];

  # A definition with properties → plain definitions, each with its priority and order.
  discharge =
    value:
    if isType "merge" value then
      concatMap discharge value.contents
    else if isType "if" value then
      (if value.condition then discharge value.content else [ ])
    else if isType "override" value then
      map (definition: definition // { inherit (value) priority; }) (discharge value.content)
    else if isType "order" value then
      map (definition: definition // { order = value.priority; }) (discharge value.content)
    else
      [
        {
          inherit value;
          priority = 100;
          order = 1000;
        }
      ];

  # Definitions of one option → its value.
  mergeDefinitions =
    loc: type: raw:
    let
      all = concatMap discharge raw;
      best = foldl' (low: d: if d.priority < low then d.priority else low) 9999 all;
      winning = b.sort (x: y: x.order < y.order) (filter (d: d.priority == best) all);
      values = map (d: d.value) winning;
      wrong = filter (value: !type.check value) values;
    in
    if all == [ ] then
      type.emptyValue
        or (throw "The option `${showOption loc}' was accessed but has no value defined. Try setting the option.")
    else if wrong != [ ] then
      throw "A definition for option `${showOption loc}' is not of type `${type.description}'. Definition values:\n- ${b.toJSON (b.head wrong)}"
    else
      type.merge loc values;

  mergeEqual =
    loc: values:
    if b.all (value: value == b.head values) values then
      b.head values
    else
      throw "The option `${showOption loc}' has conflicting definition values:\n${
        b.concatStringsSep "\n" (map (value: "- ${b.toJSON value}") values)
      }";

  types = import ./types.nix {
    inherit
      basics
      discharge
      evalModules
      mergeDefinitions
      mergeEqual
      pushDown
      ;
  };

  evalModules =
    {
      modules,
      specialArgs ? { },
      prefix ? [ ],
    }:
    let
      given = specialArgs // {
        inherit lib config options;
      };
      fromModules = foldl' (args: module: args // (module.config._module.args or { })) { } (
        filter (module: isAttrs module.config && !module.config ? _type) flat
      );
      argsOf =
        f:
        given
        // b.mapAttrs (
          name: _:
          given.${name} or fromModules.${name} or (throw "module argument `${name}' is missing")
        ) (b.functionArgs f);

      load =
        module:
        let
          loaded = if b.isPath module || b.isString module then import module else module;
          set = if isFunction loaded then loaded (argsOf loaded) else loaded;
          bare = removeAttrs set [
            "imports"
            "key"
            "_file"
          ];
        in
        if set ? config || set ? options then
          let
            extra = attrNames (
              removeAttrs bare [
                "options"
                "config"
              ]
            );
          in
          if extra != [ ] then
            throw "Module has an unsupported attribute `${b.head extra}': with config or options, everything else goes below them."
          else
            {
              imports = set.imports or [ ];
              options = set.options or { };
              config = set.config or { };
            }
        else
          {
            imports = set.imports or [ ];
            options = { };
            config = bare;
          };

      # A path that is imported twice is one module, as in nixpkgs.
      flatten =
        seen: pending:
        if pending == [ ] then
          [ ]
        else
          let
            module = b.head pending;
            known = b.isPath module && elem module seen;
            loaded = load module;
          in
          if known then
            flatten seen (b.tail pending)
          else
            [ loaded ]
            ++ flatten (seen ++ optional (b.isPath module) module) (loaded.imports ++ b.tail pending);
      flat = flatten [ ] modules;

      mergeOptions =
        loc:
        b.zipAttrsWith (
          name: sets:
          let
            declared = filter (isType "option") sets;
          in
          if declared == [ ] then
            mergeOptions (loc ++ [ name ]) sets
          else if length sets > 1 then
            throw "The option `${showOption (loc ++ [ name ])}' is already declared."
          else
            b.head declared
        );
      options = mergeOptions prefix (map (module: module.options) flat);

      valuesOf =
        loc: options: definitions:
        let
          byName = b.zipAttrsWith (_: values: values) (concatMap pushDown definitions);
          unknown = filter (
            name: !options ? ${name} && !(loc == prefix && name == "_module") && concatMap discharge byName.${name} != [ ]
          ) (attrNames byName);
          value =
            name: option:
            let
              here = loc ++ [ name ];
              defined = byName.${name} or [ ];
            in
            if isType "option" option then
              (option.apply or (x: x)) (
                if option.readOnly or false && length (concatMap discharge defined) > 1 then
                  throw "The option `${showOption here}' is read-only, but it's set multiple times."
                else
                  mergeDefinitions here option.type (
                    defined ++ optional (option ? default) (mkOptionDefault option.default)
                  )
              )
            else
              valuesOf here option defined;
        in
        if unknown != [ ] then
          throw "The option `${showOption (loc ++ [ (b.head unknown) ])}' does not exist."
        else
          b.mapAttrs value options;
      config = valuesOf prefix options (map (module: module.config) flat);
    in
    {
      inherit config options;
    };

  lib = basics // public;
  public = {
    inherit
      types
      evalModules
      mkOption
      mkEnableOption
      mkIf
      mkMerge
      mkOverride
      mkOptionDefault
      mkDefault
      mkForce
      mkOrder
      ;
    mkBefore = mkOrder 500;
    mkAfter = mkOrder 1500;
    literalExpression = text: {
      _type = "literalExpression";
      inherit text;
    };
  };
in
public
