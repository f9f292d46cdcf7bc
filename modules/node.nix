# This machine within the fleet; used by the other modules, no module itself.
{
  config,
  lib,
  utils,
  ...
}:
let
  cfg = config.services.dsv41;
  inherit (cfg.settings) fleet;
  ipv4 = import ../nix/ipv4.nix { inherit lib; };
in
rec {
  name = cfg.node;
  # Why this machine can be no node of the fleet, or null.
  outsider =
    if fleet.nodes ? ${name} then
      null
    else
      "services.dsv41.node is ${name}, which is not a node of the fleet ${fleet.name} (${lib.concatStringsSep ", " (lib.attrNames fleet.nodes)}). Set it, or networking.hostName, to one of them.";
  this = fleet.nodes.${name} or (throw outsider);
  isHead = this.rank == 0;
  worldSize = lib.length (lib.attrNames fleet.nodes);

  # Name of the node with rank 0.
  headName = lib.head (
    lib.filter (node: fleet.nodes.${node}.rank == 0) (lib.attrNames fleet.nodes)
    ++ [ (throw "services.dsv41.settings.fleet.nodes has no node with rank 0, which is the head. Give one of them rank 0.") ]
  );
  head = fleet.nodes.${headName};

  # Every node but this one.
  peers = removeAttrs fleet.nodes [ name ];

  rails = lib.attrValues this.rails;
  railInterfaces = map (rail: rail.interface) rails;

  # A path setting on this node: `{node}` stands for its name, as in the program.
  path = lib.replaceStrings [ "{node}" ] [ name ];

  # Pairs of rails over which `name` and another node reach each other directly: by the same cable, or by the same
  # rail of a switch. Each is { ours; theirs; } with the addresses without prefix length.
  reach =
    other:
    lib.concatLists (
      lib.mapAttrsToList (
        railName: rail:
        let
          far = fleet.nodes.${other}.rails.${railName} or null;
          sameCable = rail.peer == other && far != null && far.peer == name;
          sameSwitch = rail.peer == null && far != null && far.peer == null;
        in
        lib.optional (sameCable || sameSwitch) {
          ours = ipv4.address rail.address;
          theirs = ipv4.address far.address;
        }
      ) this.rails
    );

  # ExecStart of one of our processes. `instance` is put in unquoted: it is systemd's %i.
  exec =
    command: instance:
    lib.concatStringsSep " " (
      [
        (utils.escapeSystemdExecArgs [
          (lib.getExe cfg.package)
          command
        ])
      ]
      ++ instance
      ++ [
        (utils.escapeSystemdExecArgs [
          "--settings"
          cfg.settingsFile
          "--node"
          name
        ])
      ]
    );

  # `journalctl DSV41_NODE=… DSV41_RANK=…` finds every line, also those that the engine prints by itself. The stage is
  # named only by units that are one stage; the others say it line by line.
  logFields = more: [
    "DSV41_NODE=${name}"
    "DSV41_WORLD_SIZE=${toString worldSize}"
  ] ++ more;

  # What every unit of ours can do without. Devices are not restricted here: ranks need GPU and RDMA devices, and the
  # supervisor the kernel's log. Not even ProtectClock: it implies a DeviceAllow, and with it all other devices go.
  hardening = {
    LockPersonality = true;
    NoNewPrivileges = true;
    PrivateTmp = true;
    ProtectControlGroups = true;
    ProtectHome = "read-only";
    ProtectHostname = true;
    ProtectKernelModules = true;
    ProtectKernelTunables = true;
    ProtectSystem = "strict";
    RestrictSUIDSGID = true;
    SystemCallArchitectures = "native";
    UMask = "0027";
  };
}
