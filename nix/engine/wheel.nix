# One line of nix/wheels.lock.json → one derivation.
#
# What a wheel asks for is not propagated: some ask for each other, and the environment has all of them anyway.
{
  lib,
  stdenv,
  fetchurl,
  buildPythonPackage,
  python,
  autoPatchelfHook,
  addDriverRunpath,
}:
{
  entry,
  # { wheels = [ derivation ]; packages = [ derivation ]; absent = [ "libx.so.1" ]; }
  libraries,
}:
let
  binary = entry.platform != "any";
in
buildPythonPackage (
  {
    pname = entry.name;
    inherit (entry) version;
    format = "wheel";
    src = fetchurl {
      # The index keeps a file under its own hash for ever.
      url = "https://files.pythonhosted.org/${entry.path}/${entry.file}";
      name = entry.file;
      inherit (entry) sha256;
    };

    # Versions were chosen together by pip; nixpkgs' own comparison would only say so again.
    dontCheckRuntimeDeps = true;
    doCheck = false;

    meta = {
      description = "${entry.name}, as a wheel of the engine";
      license.fullName = entry.licence;
      sourceProvenance = [ lib.sourceTypes.binaryNativeCode ];
      platforms = [ "aarch64-linux" ];
    };
  }
  // lib.optionalAttrs binary {
    nativeBuildInputs = [ autoPatchelfHook ];
    buildInputs = [ stdenv.cc.cc.lib ] ++ libraries.packages;
    autoPatchelfIgnoreMissingDeps = libraries.absent;
    # Kernels are found by name in the file; stripping a fat binary has broken them before.
    dontStrip = true;
    # libcuda and its relatives, also where they are opened by name.
    appendRunpaths = [ "${addDriverRunpath.driverLink}/lib" ];
    preFixup = lib.concatMapStringsSep "" (
      wheel: "addAutoPatchelfSearchPath ${wheel}/${python.sitePackages}\n"
    ) libraries.wheels;
  }
)
