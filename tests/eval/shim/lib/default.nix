# The functions of nixpkgs' lib that our Nix code uses, and no others: a name that is not here is one more to check
# against the real lib before it is added. Builtins only.
let
  b = builtins;

  basics = rec {
    inherit (b)
      all
      any
      attrNames
      attrValues
      concatLists
      concatMap
      concatStringsSep
      elem
      elemAt
      filter
      foldl'
      hasAttr
      head
      isAttrs
      isBool
      isFunction
      isInt
      isList
      isString
      length
      lessThan
      listToAttrs
      mapAttrs
      replaceStrings
      sort
      stringLength
      tail
      toJSON
      ;

    optional = condition: value: if condition then [ value ] else [ ];
    optionals = condition: values: if condition then values else [ ];
    optionalAttrs = condition: attrs: if condition then attrs else { };
    optionalString = condition: text: if condition then text else "";

    nameValuePair = name: value: { inherit name value; };
    mapAttrsToList = f: attrs: map (name: f name attrs.${name}) (attrNames attrs);
    mapAttrs' = f: attrs: listToAttrs (mapAttrsToList f attrs);
    genAttrs = names: f: listToAttrs (map (name: nameValuePair name (f name)) names);
    filterAttrs =
      keep: attrs: b.removeAttrs attrs (filter (name: !keep name attrs.${name}) (attrNames attrs));
    mergeAttrsList = foldl' (all: attrs: all // attrs) { };

    last = list: elemAt list (length list - 1);
    range = first: end: if first > end then [ ] else b.genList (i: first + i) (end - first + 1);
    unique = foldl' (seen: value: if elem value seen then seen else seen ++ [ value ]) [ ];
    count = ok: list: length (filter ok list);
    mod = n: by: n - by * (n / by);
    toInt =
      text:
      let
        # Leading zeros are no JSON; nixpkgs refuses them too.
        value = b.fromJSON text;
      in
      if isInt value then value else throw "toInt: ${text} is not an integer";

    concatStrings = concatStringsSep "";
    concatMapStringsSep =
      separator: f: list:
      concatStringsSep separator (map f list);
    hasPrefix = prefix: text: b.substring 0 (stringLength prefix) text == prefix;
    hasSuffix =
      suffix: text:
      let
        n = stringLength text - stringLength suffix;
      in
      n >= 0 && b.substring n (-1) text == suffix;
    hasInfix = infix: text: replaceStrings [ infix ] [ "" ] text != text;
    removePrefix =
      prefix: text:
      if hasPrefix prefix text then b.substring (stringLength prefix) (-1) text else text;
    removeSuffix =
      suffix: text:
      if hasSuffix suffix text then
        b.substring 0 (stringLength text - stringLength suffix) text
      else
        text;
    splitString =
      separator: text:
      filter isString (b.split (replaceStrings [ "." "+" "|" ] [ "\\." "\\+" "\\|" ] separator) text);

    makeBinPath = concatMapStringsSep ":" (package: "${package}/bin");
    assertMsg = ok: message: ok || throw message;
    importJSON = path: b.fromJSON (b.readFile path);
    isDerivation = value: isAttrs value && value.type or null == "derivation";
    escapeShellArg = text: "'${replaceStrings [ "'" ] [ "'\\''" ] (toString text)}'";
    getExe = package: "${package}/bin/${package.meta.mainProgram}";

    licenses = genAttrs [ "asl20" ] (shortName: { inherit shortName; });
    sourceTypes.binaryNativeCode = {
      shortName = "binaryNativeCode";
    };
    platforms.linux = [
      "aarch64-linux"
      "x86_64-linux"
    ];
  };
in
basics // import ./modules.nix basics
