# Packages by name only: derivations that build an empty directory, so that what depends on them evaluates. A package
# that our code does not use is not here, and asking for it is an error.
{
  lib,
  system,
  nixosSystem,
}:
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
        inputs = lib.concatMap (name: attrs.${name} or [ ]) [
          "build-system"
          "dependencies"
          "nativeBuildInputs"
          "buildInputs"
        ];
        script = [
          (attrs.buildPhase or "")
          (attrs.preFixup or "")
        ] ++ attrs.autoPatchelfIgnoreMissingDeps or [ ] ++ attrs.appendRunpaths or [ ];
        checks = [ (attrs.postInstallCheck or "") ] ++ attrs.pythonImportsCheck or [ ];
      }
      // attrs.env or { }
    )
    // {
      inherit (attrs) meta version;
    };

  # A fixed-output derivation, as fetchurl's: what counts is the hash.
  fetchurl =
    {
      url,
      name,
      sha256,
    }:
    fake name {
      inherit url;
      outputHashMode = "flat";
      outputHashAlgo = "sha256";
      outputHash = sha256;
    };

  pythonPackages = lib.genAttrs [
    "aiohttp"
    "cython"
    "httptools"
    "pydantic"
    "pyroute2"
    "dbus-fast"
    "rich"
    "setuptools"
    "uvloop"
  ] (name: fake "python3.12-${name}" { });

  pythonScope = pythonPackages // {
    inherit buildPythonPackage fetchurl lib;
    inherit (packages)
      addDriverRunpath
      autoPatchelfHook
      rdma-core
      runCommand
      stdenv
      zlib
      ;
    python = python312;
    callPackage = callPackageWith pythonScope;
  };

  python312 = fake "python3-3.12" { } // {
    interpreter = "${fake "python3-3.12" { }}/bin/python3.12";
    pythonVersion = "3.12";
    sitePackages = "lib/python3.12/site-packages";
    pkgs = pythonScope;
    withPackages = choose: fake "python3-3.12-env" { paths = choose pythonScope; };
    buildEnv.override =
      {
        extraLibs,
        ignoreCollisions,
        makeWrapperArgs,
      }:
      fake "python3-3.12-env" {
        inherit ignoreCollisions makeWrapperArgs;
        paths = extraLibs;
      };
  };

  packages =
    lib.genAttrs [
    "autoPatchelfHook"
    "bash"
    "cacert"
    "coreutils"
    "gcc"
    "git"
    "gnumake"
    "nftables"
    "podman"
    "nixfmt"
    "nixfmt-tree"
    "rdma-core"
    "ruff"
    "zlib"
  ] (name: fake name { })
  // {
    inherit lib python312;
    stdenv = {
      hostPlatform = { inherit system; };
      cc = fake "gcc-wrapper" { } // {
        cc.lib = fake "gcc-lib" { };
      };
    };
    addDriverRunpath.driverLink = "/run/opengl-driver";
    mkShell = { packages }: fake "nix-shell" { inherit packages; };
    # A file with a text, as the fake derivation that holds it.
    writeShellScript = name: text: fake name { inherit text; };
    callPackage = callPackageWith (packages // { inherit lib; });
    dockerTools = {
      streamLayeredImage =
        {
          name,
          tag,
          contents,
          maxLayers,
          config,
        }:
        fake "stream-${name}" {
          inherit tag contents maxLayers;
          config = lib.toJSON config;
        };
      binSh = fake "binSh" { };
      fakeNss = fake "fakeNss" { };
      usrBinEnv = fake "usrBinEnv" { };
    };
    # The machines' systems, and the script that drives them.
    testers.runNixOSTest =
      {
        name,
        nodes,
        testScript,
      }:
      fake "vm-test-run-${name}" {
        inherit testScript;
        systems = lib.mapAttrsToList (
          hostName: module:
          (nixosSystem {
            modules = [
              module
              {
                networking = { inherit hostName; };
                nixpkgs.hostPlatform = system;
              }
            ];
          }).config.system.build.toplevel
        ) nodes;
      };
    runCommand =
      name: attrs: script:
      fake name (attrs // { inherit script; });
  };
in
packages
