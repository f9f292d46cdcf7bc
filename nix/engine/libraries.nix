# Where the shared libraries of a wheel come from, by nix/wheels.libraries.json. A library that is neither a wheel's nor
# named here is refused: one that nobody brings would be noticed when a kernel is first called, on a Spark.
{
  lib,
  stdenv,
  zlib,
  rdma-core,
}:
let
  sources = lib.importJSON ../wheels.libraries.json;
  system = {
    "libgomp.so.1.0.0" = stdenv.cc.cc.lib;
    "libibverbs.so.1" = rdma-core;
    "libmlx5.so.1" = rdma-core;
    "librdmacm.so.1" = rdma-core;
    "libz.so.1" = zlib;
  };

  # The driver's, from /run/opengl-driver: it must be the running kernel's.
  driver = [ "libcuda.so.1" ];

  # Asked for by files that nothing of ours loads.
  unused = {
    # Ways of NVSHMEM to start and to talk that need MPI, PMIx, libfabric or UCX; it is used through ibverbs or not at all.
    nvidia-nvshmem-cu13 = [
      "libfabric.so.1"
      "libmpi.so.40"
      "liboshmem.so.40"
      "libpmix.so.2"
      "libucp.so.0"
      "libucs.so.0"
    ];
    # Its builds for CUDA 12, beside those for 13.
    torch-memory-saver = [ "libcudart.so.12" ];
  };
in
name:
let
  source =
    sources.${name} or {
      wheels = [ ];
      system = [ ];
      absent = [ ];
    };
  known = driver ++ unused.${name} or [ ];
  unknown = lib.filter (library: !lib.elem library known) source.absent;
in
if unknown != [ ] then
  throw "nix/engine/libraries.nix: nothing brings ${lib.concatStringsSep ", " unknown} for the wheel ${name}. Name a package in `system`, or say in `unused` why it is not needed."
else
  {
    inherit (source) wheels;
    packages = lib.unique (
      map (
        library:
        system.${library}
          or (throw "nix/engine/libraries.nix: no package for ${library} of the wheel ${name}. Name it in `system`.")
      ) source.system
    );
    absent = source.absent;
  }
