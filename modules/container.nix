# Stages 5 and 6 with `settings.engine.container`: the engine is an image that podman runs. Everything here is off while
# that is null. Not run on GB10.
#
# A rank's own process is root then: podman without root needs a second user's ids, setuid helpers that NoNewPrivileges
# forbids, and a store of its own for 20 GiB. The engine inside is dsv41 all the same, without any capability.
{
  config,
  lib,
  options,
  utils,
  ...
}@args:
let
  cfg = config.services.dsv41;
  node = import ./node.nix args;
  inherit (cfg.settings) engine;
  inherit (lib) mkForce;
  used = cfg.enable && engine.container != null;
  podman = config.virtualisation.podman.package;
  cacheDir = node.path engine.container.cache_dir;

  # What podman, conmon and crun need to make a container that has none of it: mounts and namespaces, files of any owner,
  # device nodes, another user for the engine, ending it.
  capabilities = [
    "CAP_CHOWN"
    "CAP_DAC_OVERRIDE"
    "CAP_DAC_READ_SEARCH"
    "CAP_FOWNER"
    "CAP_KILL"
    "CAP_MKNOD"
    "CAP_SETGID"
    "CAP_SETPCAP"
    "CAP_SETUID"
    "CAP_SYS_ADMIN"
    "CAP_SYS_PTRACE"
    "CAP_SYS_RESOURCE"
  ];
  # Podman's store, and what it, its locks and the runtime keep in /run.
  podmanPaths = [
    "/run"
    "/var/lib/containers"
  ];
in
{
  config = lib.mkMerge [
    (lib.mkIf used {
      virtualisation.podman.enable = true;

      systemd.services."dsv41-rank@" = {
        path = [ podman ];
        serviceConfig = {
          User = mkForce "root";
          Group = mkForce "root";
          CapabilityBoundingSet = capabilities;
          # Not from systemd: it would give the cache to root at every start, and the engine writes it as dsv41.
          CacheDirectory = mkForce [ ];
          ReadWritePaths = podmanPaths ++ [ cacheDir ];
          # Of node.hardening nothing else is in podman's way: the container makes no cgroup, keeps the machine's host
          # name, and its first mounts come after those that ProtectSystem makes.
        };
      };

      # A supervisor is not root and cannot ask root's podman: this unit looks for it.
      systemd.services.dsv41-container = {
        description = "dsv41 looks at what a rank's container needs";
        path = [ podman ];
        restartIfChanged = false;
        stopIfChanged = false;
        startLimitIntervalSec = 0;

        environment.HOME = "/root";
        serviceConfig = node.hardening // {
          Type = "oneshot";
          # A rank that was killed could not remove its container: what is left of it, if only a record, goes first.
          ExecStart = node.exec "container" [
            "--remove"
            "--to"
            "/run/dsv41-container/look.json"
          ];
          CapabilityBoundingSet = capabilities;
          # Root's own directory: in the run directory the engine's user could have root write somewhere else.
          RuntimeDirectory = "dsv41-container";
          RuntimeDirectoryPreserve = true;
          ReadWritePaths = podmanPaths;
          UMask = "0022";
          PrivateNetwork = true;
          TimeoutStartSec = 60;
          LimitCORE = 0;
          LogExtraFields = node.logFields [ "DSV41_RANK=${toString node.this.rank}" ];
          SyslogIdentifier = "dsv41-container";
        };
      };

      systemd.tmpfiles.rules = [
        "d ${cacheDir} 0750 dsv41 dsv41 -"
        "d /var/lib/containers 0700 root root -"
      ];
    })

    # The GPU's CDI spec, written at every boot; where this nixpkgs has the option.
    (lib.optionalAttrs (options ? hardware.nvidia-container-toolkit) {
      hardware.nvidia-container-toolkit.enable = lib.mkIf (used && engine.device == "cuda") (lib.mkDefault true);
    })
  ];
}
