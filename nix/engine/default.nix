# The engine: SGLang and all that it asks for, as the wheels of nix/wheels.lock.json, with our adapters and the row store
# in one Python environment. Made for a Spark (aarch64, CUDA 13); evaluated anywhere.
#
# A bump: tools/lock_wheels.py, download what it names, tools/wheel_libraries.py, then `dsv41 adapters fit`.
{
  lib,
  python,
  stdenv,
  rowstore,
}:
let
  lock = lib.importJSON ../wheels.lock.json;
  entries = lib.listToAttrs (map (entry: lib.nameValuePair entry.name entry) lock.wheels);
  callPackage = python.pkgs.callPackage;
  wheel = callPackage ./wheel.nix { };
  librariesOf = callPackage ./libraries.nix { };

  wheels = lib.mapAttrs (
    name: entry:
    let
      libraries = librariesOf name;
    in
    wheel {
      inherit entry;
      libraries = libraries // {
        wheels = map (other: wheels.${other}) libraries.wheels;
      };
    }
  ) entries;

  # With the engine's own pydantic: one environment cannot hold two.
  adapters = callPackage ../adapters.nix { inherit (wheels) pydantic; };
  cudaHome = callPackage ./cuda-home.nix { inherit wheels; };

  environment = python.buildEnv.override {
    extraLibs = lib.attrValues wheels ++ [
      adapters
      rowstore
    ];
    # NVIDIA's wheels share the package `nvidia`, and each brings the same empty files for it.
    ignoreCollisions = true;
    makeWrapperArgs = [
      "--set CUDA_HOME ${cudaHome}"
      "--prefix PATH : ${
        lib.makeBinPath [
          cudaHome
          stdenv.cc
          wheels.ninja
        ]
      }"
    ];
  };
in
# Other Pythons have no wheels here, and the mistake would show as a missing module on a Spark.
assert lib.assertMsg (
  python.pythonVersion == lock.python
) "nix/engine: the lock is for Python ${lock.python}, this is ${python.pythonVersion}.";
environment
// {
  inherit wheels;
  licences = lib.mapAttrs (_: entry: entry.licence) entries;
}
