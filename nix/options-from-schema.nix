# JSON Schema, as pydantic writes it → typed NixOS options.
#
# Every keyword is either turned into a type, or known to say nothing about values, or refused: a rule that Nix dropped
# would be a mistake that evaluates. Only what the schema of our settings uses is here; the rest throws by name.
{ lib }:
schema:
let
  inherit (lib) mkOption types;
  ipv4 = import ./ipv4.nix { inherit lib; };

  refuse =
    where: what:
    throw "options-from-schema: ${if where == "" then "the top level" else where}: ${what}. Teach nix/options-from-schema.nix this, or say it differently in the pydantic model.";

  # These describe a value and do not limit it.
  annotations = [
    "title"
    "description"
    "default"
    "examples"
  ];

  only =
    where: allowed: node:
    let
      unknown = lib.filter (keyword: !lib.elem keyword (allowed ++ annotations)) (lib.attrNames node);
    in
    if unknown == [ ] then
      node
    else
      refuse where "no NixOS type for the keyword ${lib.concatStringsSep ", " unknown}";

  # A reference with what stands beside it: the field's own description and default win over the definition's.
  resolve =
    where: node:
    if node ? "$ref" then
      let
        name = lib.removePrefix "#/$defs/" node."$ref";
        target = schema."$defs".${name} or (refuse where "${node."$ref"} is not defined");
      in
      resolve where target // removeAttrs node [ "$ref" ]
    else
      node;

  # `ok` is asked for every definition; `says` is what the message about a wrong one calls the type.
  limited =
    base: noun: limits:
    let
      present = lib.filter (limit: limit != null) limits;
    in
    if present == [ ] then
      base
    else
      types.addCheck base (value: lib.all (limit: limit.ok value) present)
      // {
        description = "${noun} ${lib.concatMapStringsSep ", " (limit: limit.says) present}";
      };

  limit =
    node: keyword: says: ok:
    if node ? ${keyword} then
      let
        check = ok node.${keyword};
      in
      builtins.seq check {
        ok = check;
        says = "${says} ${toString node.${keyword}}";
      }
    else
      null;

  numberType =
    where: base: noun: node:
    let
      n = only where [
        "type"
        "minimum"
        "maximum"
        "exclusiveMinimum"
        "exclusiveMaximum"
      ] node;
    in
    limited base noun [
      (limit n "minimum" "of at least" (low: value: value >= low))
      (limit n "exclusiveMinimum" "above" (low: value: value > low))
      (limit n "maximum" "at most" (high: value: value <= high))
      (limit n "exclusiveMaximum" "below" (high: value: value < high))
    ];

  # A search pattern of Python's `re` → the anchored POSIX pattern of builtins.match.
  toPosix =
    where: pattern:
    if
      lib.hasInfix "(?" pattern
      || builtins.match ".*\\\\[A-Za-z].*" pattern != null
      || builtins.match "[^(]*\\|.*" pattern != null
    then
      refuse where "the pattern ${pattern} is not one that both Python and POSIX read alike"
    else
      (if lib.hasPrefix "^" pattern then "" else ".*")
      + lib.removeSuffix "$" (lib.removePrefix "^" pattern)
      + (if lib.hasSuffix "$" pattern then "" else ".*");

  formats = {
    ipv4 = {
      says = "an IPv4 address";
      pattern = ipv4.addressPattern;
    };
    ipv4interface = {
      says = "an IPv4 address with prefix length, such as 10.0.12.1/24";
      pattern = ipv4.interfacePattern;
    };
  };

  stringType =
    where: node:
    let
      n = only where [
        "type"
        "pattern"
        "minLength"
        "maxLength"
        "format"
      ] node;
      format = formats.${n.format} or (refuse where "no NixOS type for the format ${n.format}");
    in
    limited types.str "string," [
      (limit n "pattern" "matching" (
        pattern:
        let
          posix = toPosix where pattern;
        in
        builtins.seq posix (value: builtins.match posix value != null)
      ))
      (limit n "minLength" "characters: at least" (low: value: lib.stringLength value >= low))
      (limit n "maxLength" "characters: at most" (high: value: lib.stringLength value <= high))
      (
        if n ? format then
          {
            inherit (format) says;
            ok = value: builtins.match format.pattern value != null;
          }
        else
          null
      )
      # Everything in the store can be read by every user of the machine, and is copied to every cache.
      (
        if lib.hasSuffix "_file" where then
          {
            says = "outside the Nix store, because it holds a secret";
            ok =
              value:
              let
                parts = lib.filter (part: part != "" && part != ".") (lib.splitString "/" value);
              in
              !lib.elem ".." parts && !lib.hasPrefix builtins.storeDir "/${lib.concatStringsSep "/" parts}";
          }
        else
          null
      )
    ];

  unionType =
    where: node:
    let
      n = only where [ "anyOf" ] node;
      isNull = variant: variant == { type = "null"; };
      others = lib.filter (variant: !isNull variant) n.anyOf;
    in
    if lib.length others == 1 && lib.any isNull n.anyOf then
      types.nullOr (typeOf where (lib.head others))
    else
      refuse where "a union of anything but one type and null";

  # An object of a pydantic model: its own fields and no others.
  closed =
    where: node:
    let
      n = only where [
        "type"
        "properties"
        "required"
        "additionalProperties"
      ] node;
    in
    if n.additionalProperties or true == false then
      n
    else
      refuse where "an object that takes names beyond its own (extra=\"forbid\" is missing)";

  objectType =
    where: node:
    let
      n = only where [
        "type"
        "properties"
        "required"
        "additionalProperties"
        "patternProperties"
        "minProperties"
        "maxProperties"
      ] node;
      patterns = lib.attrNames (n.patternProperties or { });
    in
    if n ? properties then
      types.submodule { options = optionsOf where (closed where n); }
    else if lib.length patterns == 1 then
      # The pattern itself is applied by `wholeChecked`; here it must only be one that can be.
      builtins.seq (toPosix where (lib.head patterns)) (
        types.attrsOf (typeOf' "${where}.<name>" n.patternProperties.${lib.head patterns})
      )
    else if lib.isAttrs (n.additionalProperties or null) && patterns == [ ] then
      types.attrsOf (typeOf' "${where}.<name>" n.additionalProperties)
    else
      refuse where "an object without a type for its values";

  # Rules on a container as a whole, which `optionOf` checks and no type can: nixpkgs rebuilds a type that holds
  # submodules, and a check added to it is lost on the way.
  wholeRules = [
    "patternProperties"
    "minProperties"
    "maxProperties"
    "minItems"
    "maxItems"
  ];
  # A type inside another container's, where there is no option to hold such rules.
  typeOf' =
    where: node:
    if lib.any (rule: resolve where node ? ${rule}) wholeRules then
      refuse where "a limit on the names or the number of entries of a container in a container"
    else
      typeOf where node;

  typeOf =
    where: node':
    let
      node = resolve where node';
      constant = only where [
        "type"
        "const"
        "enum"
      ] node;
    in
    if node ? anyOf then
      unionType where node
    else if node ? const then
      types.enum [ constant.const ]
    else if node ? enum then
      types.enum constant.enum
    else
      {
        boolean = builtins.seq (only where [ "type" ] node) types.bool;
        integer = numberType where types.int "integer" node;
        number = numberType where types.number "number" node;
        string = stringType where node;
        array = types.listOf (
          typeOf' "${where}.<item>" (
            only where [
              "type"
              "items"
              "minItems"
              "maxItems"
            ] node
          ).items
        );
        object = objectType where node;
      }
      .${node.type or (refuse where "a value without a type")}
        or (refuse where "no NixOS type for the type ${node.type}");

  # Looked at after all definitions are merged, so that modules may each add their part.
  wholeChecked =
    where: node: value:
    let
      names = lib.attrNames value;
      size = if lib.isList value then lib.length value else lib.length names;
      low = node.minProperties or node.minItems or 0;
      high = node.maxProperties or node.maxItems or null;
      pattern = lib.head (lib.attrNames node.patternProperties);
      misnamed = lib.filter (name: builtins.match (toPosix where pattern) name == null) names;
    in
    if value == null then
      null
    else if size < low || (high != null && size > high) then
      throw "services.dsv41.settings.${where} has ${toString size} entries, expected ${
        if high == null then "at least ${toString low}" else "${toString low} to ${toString high}"
      }."
    else if node ? patternProperties && misnamed != [ ] then
      throw "services.dsv41.settings.${where} has the name ${lib.head misnamed}, expected names that match ${pattern}."
    else
      value;

  # An object that is always there is a set of options rather than one option of type submodule, so that a condition on
  # one of its fields (the profiles') does not need the value of all the others.
  isSection = node: node ? properties && node.type or null == "object";

  optionOf =
    where: required: node':
    let
      node = resolve where node';
      # The container itself where null is allowed in its place.
      container = resolve where (
        lib.head (lib.filter (variant: variant != { type = "null"; }) (node.anyOf or [ node ]))
      );
      hasWholeRule = lib.any (rule: container ? ${rule}) wholeRules;
    in
    if isSection node then
      optionsOf where (closed where node)
    else
      mkOption (
        {
          type = typeOf where node';
          inherit (node) description;
        }
        // lib.optionalAttrs (node ? examples) { example = lib.head node.examples; }
        // lib.optionalAttrs hasWholeRule { apply = wholeChecked where container; }
        // (
          if node ? default then
            { inherit (node) default; }
          else if required then
            { }
          else if node.type or null == "object" then
            # default_factory=dict in the model.
            { default = { }; }
          else
            refuse where "the field is optional and the schema has no default for it"
        )
      );

  optionsOf =
    where: node:
    lib.mapAttrs (
      name:
      optionOf (if where == "" then name else "${where}.${name}") (lib.elem name (node.required or [ ]))
    ) node.properties;

  # Types are made when a value is looked at; what no fleet sets must be understood all the same.
  understood =
    where: node:
    lib.all (
      name:
      let
        field = resolve "${where}.${name}" node.properties.${name};
      in
      builtins.seq (typeOf "${where}.${name}" field).description (
        field ? description || refuse "${where}.${name}" "the field has no description"
      )
    ) (lib.attrNames (node.properties or { }));
in
assert understood "" schema;
assert lib.all (name: understood "#/$defs/${name}" schema."$defs".${name}) (
  lib.attrNames (schema."$defs" or { })
);
optionsOf "" (closed "" (removeAttrs schema [ "$defs" ]))
