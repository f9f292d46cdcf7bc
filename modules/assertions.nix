# What can be refused before anything is built, one sentence each: what is wrong, where, and what to do. Types refuse
# wrong values before this; the program checks the rest in the build (settings.nix).
{
  config,
  lib,
  utils,
  ...
}@args:
let
  cfg = config.services.dsv41;
  inherit (cfg.settings)
    checkpoint
    engine
    fleet
    gateway
    pack
    share
    ;
  inherit (fleet) nodes;
  node = import ./node.nix args;
  ipv4 = import ../nix/ipv4.nix { inherit lib; };

  nodeNames = lib.attrNames nodes;
  nNodes = lib.length nodeNames;
  ranks = lib.sort lib.lessThan (map (n: n.rank) (lib.attrValues nodes));
  list = lib.concatStringsSep ", ";
  numbers = values: list (map toString values);

  # Every rail of the fleet as { node, name, where, rail }.
  rails = lib.concatLists (
    lib.mapAttrsToList (
      nodeName: n:
      lib.mapAttrsToList (name: rail: {
        inherit name rail;
        node = nodeName;
        where = "fleet.nodes.${nodeName}.rails.${name}";
      }) n.rails
    ) nodes
  );

  # Names of a fleet's values that occur more than once.
  repeated =
    values: lib.filter (value: lib.count (other: other == value) values > 1) (lib.unique values);

  refuseIf = wrong: message: {
    assertion = !wrong;
    message = "services.dsv41.settings.${message}";
  };

  # check for ranks: one each, from 0, no gaps
  rankChecks = [
    (refuseIf (ranks != lib.range 0 (nNodes - 1))
      "fleet.nodes.*.rank are ${numbers ranks}, expected ${numbers (lib.range 0 (nNodes - 1))}. Give each node its own rank, from 0 and without gaps; rank 0 is the head."
    )
    (refuseIf (engine.parallelism.tp_size != nNodes)
      "engine.parallelism.tp_size is ${toString engine.parallelism.tp_size}, but fleet.nodes has ${toString nNodes}. One GPU a node: make the two equal."
    )
    (refuseIf (lib.mod engine.parallelism.tp_size engine.parallelism.ep_size != 0)
      "engine.parallelism.ep_size ${toString engine.parallelism.ep_size} does not divide tp_size ${toString engine.parallelism.tp_size}. Use a divisor, or 1."
    )
  ];

  # check for shards: what a rank holds must be whole. Source: config.json of DeepSeek-V4.1-Flash; padding of experts is
  # not done, since a shard's scales are for whole blocks (adapters/tp_pad/padding.py).
  model = {
    moe_intermediate_size = 2304;
    o_groups = 8;
    fp8_block = 32;
  };
  shardChecks =
    let
      inherit (engine.parallelism) tp_size ep_size;
      shards = tp_size / ep_size;
      blocks = model.moe_intermediate_size / model.fp8_block;
      fitting = lib.filter (n: lib.mod blocks n == 0) (lib.range 1 8);
    in
    lib.optionals (engine.kind == "sglang" && engine.device == "cuda" && lib.mod tp_size ep_size == 0) [
      (refuseIf (lib.mod blocks shards != 0)
        "engine.parallelism.tp_size is ${toString tp_size}, but ${toString shards} shards of the experts' width ${toString model.moe_intermediate_size} are not whole blocks of ${toString model.fp8_block}: the model cannot be cut so. Use ${numbers fitting} nodes."
      )
      (refuseIf (lib.mod model.o_groups tp_size != 0 && cfg.settings.adapters.tp_pad == null)
        "engine.parallelism.tp_size is ${toString tp_size}, which does not divide the model's ${toString model.o_groups} groups of attention heads. Set services.dsv41.settings.adapters.tp_pad = { }, which pads them."
      )
    ];

  # check for rails: each goes somewhere, and twins are told apart by their subnets
  subnetChecks = lib.concatLists (
    lib.mapAttrsToList (
      nodeName: n:
      map (
        subnet:
        refuseIf true "fleet.nodes.${nodeName}.rails: ${
          list (
            lib.filter (name: ipv4.network n.rails.${name}.address == subnet) (lib.attrNames n.rails)
          )
        } share the subnet ${subnet}. Twins of one port need separate subnets, or luck decides which one carries the traffic."
      ) (repeated (map (rail: ipv4.network rail.address) (lib.attrValues n.rails)))
    ) nodes
  );

  interfaceChecks = lib.concatLists (
    lib.mapAttrsToList (
      nodeName: n:
      map (
        interface:
        refuseIf true "fleet.nodes.${nodeName} names the interface ${interface} more than once. Each rail has its own, and the management interface is not a rail."
      ) (repeated ([ n.management_interface ] ++ map (rail: rail.interface) (lib.attrValues n.rails)))
    ) nodes
  );

  addressChecks =
    map (address: refuseIf true "fleet: the rail address ${address} is used twice. Every rail's end has its own.") (
      repeated (map (r: ipv4.address r.rail.address) rails)
    )
    ++ map (
      address:
      refuseIf true "fleet: the management address with port ${address} is used by several nodes. Give each its own."
    ) (repeated (map (n: "${n.management_address}:${toString n.supervisor_port}") (lib.attrValues nodes)));

  # check for rails: an address that a machine can have, and that management traffic does not go to
  railAddressChecks = lib.concatMap (
    r:
    let
      within = lib.filter (
        name:
        ipv4.network "${nodes.${name}.management_address}/${ipv4.prefix r.rail.address}"
        == ipv4.network r.rail.address
      ) nodeNames;
    in
    [
      (refuseIf (!ipv4.isHost r.rail.address)
        "${r.where}.address is ${r.rail.address}, which names the network or all in it and no machine. Take an address between the two."
      )
      (refuseIf (within != [ ])
        "${r.where}.address is ${r.rail.address}, and in that subnet are the management addresses of ${list within}. Give rails subnets of their own, or the way to those nodes is a rail."
      )
    ]
  ) rails;

  peerChecks = map (
    r:
    let
      peer = r.rail.peer;
      back = nodes.${peer}.rails.${r.name} or null;
    in
    if peer == null then
      refuseIf (
        fleet.topology != "switched"
      ) "${r.where}.peer is null, but a ${fleet.topology} has a node at each cable's end. Name it."
    else if peer == r.node || !nodes ? ${peer} then
      refuseIf true "${r.where}.peer is ${peer}, which is not another node of this fleet (${list nodeNames}). Correct the name."
    else if back == null || back.peer != r.node then
      refuseIf true "${r.where}.peer is ${peer}, but ${peer} has no rail ${r.name} back to ${r.node}. Both ends of a cable share the rail's name."
    else
      refuseIf (ipv4.network back.address != ipv4.network r.rail.address)
        "${r.where}.address is ${r.rail.address}, but its peer's is ${back.address}: not the same subnet. Put both ends of a cable into one."
  ) rails;

  deviceChecks =
    map (
      r:
      refuseIf (
        engine.device == "cuda" && r.rail.rdma_device == null
      ) "${r.where}.rdma_device is null, but engine.device is cuda. Name the device, as `ls /sys/class/infiniband` shows it."
    ) rails
    ++ lib.concatLists (
      lib.mapAttrsToList (
        nodeName: n:
        map (
          device:
          refuseIf true "fleet.nodes.${nodeName} names the RDMA device ${device} more than once. Each twin has its own, and one that is named for both leaves the other idle."
        ) (repeated (lib.filter (device: device != null) (map (rail: rail.rdma_device) (lib.attrValues n.rails))))
      ) nodes
    );

  # check for topology
  topologyChecks =
    let
      triangle = fleet.topology == "triangle";
      ring = fleet.topology == "ring";
      neighbours =
        name: lib.unique (map (r: r.rail.peer) (lib.filter (r: r.node == name && r.rail.peer != null) rails));
      lonely = map (name: "${name} has ${toString (lib.length (neighbours name))}") (
        lib.filter (name: lib.length (neighbours name) != 2) nodeNames
      );
      missing = lib.concatMap (
        name:
        map (other: "${name} to ${other}") (
          lib.filter (
            other: other != name && !lib.any (r: r.node == name && r.rail.peer == other) rails
          ) nodeNames
        )
      ) nodeNames;
    in
    [
      (refuseIf (triangle && nNodes != 3)
        "fleet.topology is triangle, which has 3 nodes; fleet.nodes has ${toString nNodes}. Four nodes are switched or a ring."
      )
      (refuseIf (ring && nNodes < 4)
        "fleet.topology is ring, which has 4 nodes or more; fleet.nodes has ${toString nNodes}. Three are a triangle."
      )
      (refuseIf (ring && nNodes >= 4 && lonely != [ ])
        "fleet.topology is ring, but not every node has two neighbours (${list lonely}). Cable each node to the one before and the one after."
      )
      (refuseIf (triangle && nNodes == 3 && missing != [ ])
        "fleet.topology is triangle, but there is no rail from ${list missing}. Add the cable, or name another topology."
      )
    ];

  # check for the checkpoint's way to the workers
  shareChecks =
    let
      # Each machine looks at its own rails: the head's to every worker, a worker's to the head.
      pairs =
        if node.isHead then
          map (worker: {
            inherit worker;
            other = worker;
          }) (lib.attrNames node.peers)
        else
          [
            {
              worker = node.name;
              other = node.headName;
            }
          ];
    in
    map (
      pair:
      refuseIf (share.mode == "nfs" && node.reach pair.other == [ ])
        "share.mode is nfs, but ${pair.worker} has no rail to the head ${node.headName}. The checkpoint goes over rails only: add one, or use share.mode local."
    ) pairs
    ++ [
      (refuseIf
        (share.mode == "nfs" && lib.hasPrefix "${checkpoint.path}/" "${pack.directory}/")
        "pack.directory is ${pack.directory}, within checkpoint.path, which workers mount read-only with share.mode nfs. Name a directory on each node's own drive."
      )
    ];

  # check for paths: units, tmpfiles and exports are lines of words
  pathChecks =
    lib.mapAttrsToList
      (
        option: path:
        refuseIf (builtins.match "[^[:space:]%]*" (toString path) == null)
          "${option} is ${toString path}, which has a space or %. systemd would read two paths or a specifier there. Name one without."
      )
      {
        "checkpoint.path" = checkpoint.path;
        "pack.directory" = pack.directory;
        "supervisor.run_dir" = cfg.settings.supervisor.run_dir;
        "supervisor.state_dir" = cfg.settings.supervisor.state_dir;
        "fleet.key_file" = fleet.key_file;
        "gateway.keys_file" = gateway.keys_file;
        "gateway.tls.certificate" = gateway.tls.certificate;
        "gateway.tls.key_file" = gateway.tls.key_file;
        "alerts.webhook_url_file" = cfg.settings.alerts.webhook_url_file;
      };

  # check for the gateway: it is the head's, and a port is one program's
  gatewayChecks =
    let
      inherit (engine.rendezvous) first_port n_ports;
      last = first_port + n_ports - 1;
      owners = lib.filter (
        name:
        name != node.headName
        && lib.elem gateway.address (
          [ nodes.${name}.management_address ]
          ++ map (rail: ipv4.address rail.address) (lib.attrValues nodes.${name}.rails)
        )
      ) nodeNames;
      port = "gateway.port is ${toString gateway.port}, which is";
    in
    map (
      owner:
      refuseIf true "gateway.address is ${gateway.address}, which is ${owner}'s, and the gateway runs on the head ${node.headName}. Use an address of the head, 0.0.0.0 for all of them, or 127.0.0.1."
    ) owners
    ++ [
      (refuseIf (gateway.port == node.head.supervisor_port)
        "${port} the supervisor's on the head (fleet.nodes.${node.headName}.supervisor_port). Use another."
      )
      (refuseIf (gateway.port == node.head.engine_port)
        "${port} the engine's on the head (fleet.nodes.${node.headName}.engine_port). Use another."
      )
      (refuseIf (gateway.port >= first_port && gateway.port <= last)
        "${port} one of the ranks' (engine.rendezvous, ${toString first_port} to ${toString last}). Use another."
      )
    ];

  # check for names of things in this flake
  profiles = map (lib.removeSuffix ".nix") (lib.attrNames (builtins.readDir ./profiles));
  profileChecks = [
    (refuseIf (engine.profile != null && !lib.elem engine.profile profiles)
      "engine.profile is ${toString engine.profile}; the measured profiles are ${list profiles}. Use one, or null."
    )
    (refuseIf (lib.elem engine.profile profiles && engine.profile != "tp${toString nNodes}")
      "engine.profile is ${toString engine.profile}, but fleet.nodes has ${toString nNodes}. The profile was measured on ${
        lib.removePrefix "tp" (toString engine.profile)
      } nodes: use null and set the values yourself."
    )
  ];

  # check for the engine: one way to run it, and an image that cannot change
  engineChecks =
    let
      inherit (engine) container;
      image = if container == null then "" else container.image;
      name = lib.head (lib.splitString "@" image);
    in
    [
      (refuseIf (engine.python == null && container == null)
        "engine.python is null, and so is engine.container. Set services.dsv41.enginePackage, or engine.container.image to an image by digest."
      )
      (refuseIf (engine.python != null && container != null)
        "engine.python and engine.container are both set, and a rank runs one of them. Take one out."
      )
      (refuseIf (container != null && builtins.match ".+@sha256:[0-9a-f]{64}" image == null)
        "engine.container.image is ${image}, which names no digest: a tag moves, and all ranks run the same bits or none. Run podman pull ${name}, then podman image inspect --format '{{.RepoDigests}}' ${name}, and set it to what that prints."
      )
    ];

  nodeChecks = [
    {
      assertion = node.outsider == null;
      message = toString node.outsider;
    }
  ];

  firewallChecks = [
    {
      assertion = cfg.openFirewall -> config.networking.nftables.enable;
      message = "services.dsv41.openFirewall needs networking.nftables.enable, because it lets nodes in by address. Enable it, or set openFirewall to false and open the rails and the ports yourself.";
    }
  ];
in
{
  config = lib.mkIf cfg.enable {
    # A machine that is not in the fleet, or a fleet without a head, says so alone: the rest would be noise.
    assertions =
      nodeChecks
      ++ rankChecks
      ++ engineChecks
      ++ lib.optionals (node.outsider == null && lib.elem 0 ranks) (
        subnetChecks
        ++ interfaceChecks
        ++ addressChecks
        ++ railAddressChecks
        ++ peerChecks
        ++ deviceChecks
        ++ topologyChecks
        ++ shardChecks
        ++ shareChecks
        ++ pathChecks
        ++ gatewayChecks
        ++ profileChecks
        ++ firewallChecks
      );
  };
}
