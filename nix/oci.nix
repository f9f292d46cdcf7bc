# The engine for a Spark that keeps DGX OS: SGLang, adapters and row store in layers, a script that writes the image to
# standard output: `$(nix build --print-out-paths .#oci) | podman load`. No weights.
{
  dockerTools,
  engine,
  bash,
  coreutils,
  cacert,
}:
dockerTools.streamLayeredImage {
  name = "dsv41-engine";
  tag = engine.wheels.sglang.version;
  contents = [
    engine
    # Kernels are compiled while the engine runs.
    bash
    coreutils
    dockerTools.usrBinEnv
    dockerTools.binSh
    dockerTools.fakeNss
    cacert
  ];
  # The wheels that change least share layers by themselves; more of them make an upgrade smaller.
  maxLayers = 120;
  config = {
    Entrypoint = [ "${engine}/bin/python3" ];
    Env = [
      "PATH=/bin"
      # What the NVIDIA container toolkit is asked for where CDI is not used.
      "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
      "LD_LIBRARY_PATH=/usr/lib/aarch64-linux-gnu"
      "TMPDIR=/tmp"
    ];
  };
}
