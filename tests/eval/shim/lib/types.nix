# The option types that our modules and the stand-in's own options use.
{
  basics,
  discharge,
  evalModules,
  mergeDefinitions,
  mergeEqual,
  pushDown,
}:
let
  b = builtins;
  inherit (basics) filterAttrs hasPrefix isDerivation last;
  type = attrs: { merge = mergeEqual; } // attrs;
in
rec {
  raw = type {
    description = "raw value";
    check = _: true;
  };
  bool = type {
    description = "boolean";
    check = b.isBool;
  };
  int = type {
    description = "signed integer";
    check = b.isInt;
  };
  float = type {
    description = "floating point number";
    check = b.isFloat;
  };
  number = either int float;
  str = type {
    description = "string";
    check = b.isString;
  };
  lines = type {
    description = "strings concatenated with \"\\n\"";
    check = b.isString;
    merge = _: b.concatStringsSep "\n";
  };
  path = type {
    description = "absolute path";
    check = value: b.isPath value || isDerivation value || (b.isString value && hasPrefix "/" value);
  };
  package = type {
    description = "package";
    check = isDerivation;
  };
  strMatching =
    pattern:
    type {
      description = "string matching the pattern ${pattern}";
      check = value: b.isString value && b.match pattern value != null;
    };
  enum =
    values:
    type {
      description = "one of ${b.concatStringsSep ", " (map b.toJSON values)}";
      check = value: b.elem value values;
    };
  ints.between =
    low: high:
    type {
      description = "integer between ${toString low} and ${toString high} (both inclusive)";
      check = value: b.isInt value && value >= low && value <= high;
    };
  port = ints.between 0 65535;

  addCheck = base: ok: base // { check = value: base.check value && ok value; };

  nullOr =
    inner:
    type {
      description = "null or ${inner.description}";
      check = value: value == null || inner.check value;
      merge =
        loc: values:
        if b.any (value: value == null) values then mergeEqual loc values else inner.merge loc values;
    };

  either =
    left: right:
    type {
      description = "${left.description} or ${right.description}";
      check = value: left.check value || right.check value;
      merge =
        loc: values:
        if b.all left.check values then
          left.merge loc values
        else if b.all right.check values then
          right.merge loc values
        else
          mergeEqual loc values;
    };
  oneOf = all: b.foldl' either (b.head all) (b.tail all);

  listOf =
    inner:
    type {
      description = "list of ${inner.description}";
      check = b.isList;
      emptyValue = [ ];
      merge =
        loc: values:
        map (definition: mergeDefinitions (loc ++ [ "[definition]" ]) inner [ definition ]) (
          b.concatLists values
        );
    };

  attrsOf =
    inner:
    type {
      description = "attribute set of ${inner.description}";
      check = b.isAttrs;
      emptyValue = { };
      merge =
        loc: values:
        b.mapAttrs (name: mergeDefinitions (loc ++ [ name ]) inner) (
          filterAttrs (_: definitions: b.concatMap discharge definitions != [ ]) (
            b.zipAttrsWith (_: definitions: definitions) (b.concatMap pushDown values)
          )
        );
    };

  submodule =
    modules:
    let
      all = if b.isList modules then modules else [ modules ];
      evaluate =
        loc: definitions:
        (evalModules {
          modules =
            all
            # A set is all configuration, even where it has a name `options` or `config`.
            ++ map (value: if b.isAttrs value then { config = value; } else value) definitions
            ++ [ { _module.args.name = last loc; } ];
          prefix = loc;
        }).config;
    in
    type {
      description = "submodule";
      check = value: b.isAttrs value || b.isFunction value || b.isPath value;
      emptyValue = evaluate [ "submodule" ] [ ];
      merge = evaluate;
    };
}
