# Packages by name only: derivations that build an empty directory, so that what depends on them evaluates. A package
# that our code does not use is not here, and asking for it is an error.
{ lib, system }:
let
  fake =
    name: attrs:
    derivation (
      {
        inherit name system;
        builder = "/bin/sh";
        args = [
          "-c"
          "/bin/mkdir $out"
        ];
      }
      // attrs
    );

  callPackageWith =
    scope: file: overrides:
    let
      f = import file;
      names = builtins.functionArgs f;
      given = builtins.intersectAttrs names scope // overrides;
      missing = builtins.filter (name: !names.${name} && !given ? ${name}) (builtins.attrNames names);
    in
    if missing == [ ] then
      f given
    else
      throw "${toString file} asks for ${lib.concatStringsSep ", " missing}, which the stand-in does not have.";

  # What Python packages pass on to the derivation is what a change of theirs should rebuild.
  buildPythonPackage =
    attrs:
    fake "python3.12-${attrs.pname}-${attrs.version}" (
      {
        inherit (attrs) src;
        inputs = attrs.build-system ++ attrs.dependencies or [ ];
        checks = [ (attrs.postInstallCheck or "") ] ++ attrs.pythonImportsCheck;
      }
      // attrs.env or { }
    )
    // {
      inherit (attrs) meta;
    };

  pythonPackages = lib.genAttrs [
    "aiohttp"
    "cython"
    "pydantic"
    "pyroute2"
    "dbus-fast"
    "rich"
    "setuptools"
  ] (name: fake "python3.12-${name}" { });

  pythonScope = pythonPackages // {
    inherit buildPythonPackage lib;
    python = python312;
    callPackage = callPackageWith pythonScope;
  };

  python312 = fake "python3-3.12" { } // {
    interpreter = "${fake "python3-3.12" { }}/bin/python3.12";
    pkgs = pythonScope;
  };
in
lib.genAttrs [
  "gcc"
  "git"
  "gnumake"
  "nixfmt"
  "nixfmt-tree"
  "ruff"
] (name: fake name { })
// {
  inherit lib python312;
  stdenv.hostPlatform = { inherit system; };
  mkShell = { packages }: fake "nix-shell" { inherit packages; };
  runCommand =
    name: attrs: script:
    fake name (attrs // { inherit script; });
}
