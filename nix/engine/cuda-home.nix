# What kernels are compiled with while the engine runs (FlashInfer, tilelang, torch's extensions): a CUDA_HOME in the
# layout that they expect, of the same wheels that the engine loads.
{
  lib,
  runCommand,
  python,
  wheels,
}:
let
  part = name: "${wheels.${name}}/${python.sitePackages}/nvidia/cu13/.";
  parts = lib.concatMapStringsSep " " part;
in
runCommand "dsv41-cuda-home-${wheels.nvidia-cuda-nvcc.version}" { } ''
  mkdir -p "$out/lib64"
  # nvcc looks for its parts beside the file that it really is, so these are copies.
  for part in ${
    parts [
      "nvidia-cuda-nvcc"
      "nvidia-nvvm"
      "nvidia-cuda-crt"
    ]
  }; do
    cp -r --no-preserve=ownership "$part" "$out/"
    chmod -R u+w "$out"
  done
  for part in ${
    parts [
      "nvidia-cuda-cccl"
      "nvidia-cuda-runtime"
      "nvidia-cuda-nvrtc"
      "nvidia-cublas"
      "nvidia-curand"
      "nvidia-cusparse"
      "nvidia-cusolver"
    ]
  }; do
    cp -rs --no-preserve=mode "$part" "$out/"
  done
  # Linkers ask for libx.so in lib64; the wheels have libx.so.13 in lib.
  for library in "$out"/lib/*.so.*; do
    name=''${library##*/}
    ln -sf "$library" "$out/lib64/$name"
    ln -sf "$library" "$out/lib64/''${name%%.so.*}.so"
  done
''
