# Stage 7, gateway: the OpenAI endpoint, on the head only. It runs always, and answers 503 with a reason while the fleet
# does not serve; SGLang itself listens on loopback.
{
  config,
  lib,
  utils,
  ...
}@args:
let
  cfg = config.services.dsv41;
  node = import ./node.nix args;
  inherit (cfg.settings) gateway;
  privileged = gateway.port < 1024;
  withTls = gateway.tls.certificate != null && gateway.tls.key_file != null;
  onLoopback = lib.hasPrefix "127." gateway.address;
in
{
  config = lib.mkIf (cfg.enable && node.isHead) {
    systemd.services.dsv41-gateway = {
      description = "dsv41 gateway, the OpenAI endpoint of ${cfg.settings.fleet.name}";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" ];
      after = [
        "network-online.target"
        "dsv41-supervisor.service"
      ];
      startLimitIntervalSec = 0;

      serviceConfig = node.hardening // {
        Type = "notify";
        NotifyAccess = "main";
        ExecStart = node.exec "gateway" [ ];
        User = "dsv41-gateway";
        Group = "dsv41-gateway";
        # Reads the certificate again; it does so itself within seconds where it may read the files themselves.
        ExecReload = "/bin/sh -c 'kill -HUP $MAINPID'";
        Restart = "always";
        RestartSec = 1;
        RestartPreventExitStatus = 78;
        # Longer than the gateway itself lets running streams finish.
        TimeoutStopSec = 30;

        LoadCredential = [
          "fleet-key:${node.path cfg.settings.fleet.key_file}"
        ]
        ++ lib.optional gateway.require_key "api-keys:${node.path gateway.keys_file}"
        ++ lib.optionals withTls [
          "tls-certificate:${node.path gateway.tls.certificate}"
          "tls-key:${node.path gateway.tls.key_file}"
        ];
        # One that is missing is named by the program, with its path.
        SetCredential = [
          "fleet-key:-"
          "api-keys:-"
        ]
        ++ lib.optionals withTls [
          "tls-certificate:-"
          "tls-key:-"
        ];

        AmbientCapabilities = lib.optional privileged "CAP_NET_BIND_SERVICE";
        CapabilityBoundingSet = if privileged then [ "CAP_NET_BIND_SERVICE" ] else [ "" ];
        LimitNOFILE = 65536;
        OOMScoreAdjust = -500;
        PrivateDevices = true;
        ProtectClock = true;
        ProtectHome = true;
        ProtectKernelLogs = true;
        ProtectProc = "invisible";
        RemoveIPC = true;
        RestrictAddressFamilies = [
          "AF_INET"
          "AF_INET6"
          "AF_UNIX"
        ];
        RestrictNamespaces = true;
        RestrictRealtime = true;
        SystemCallFilter = [
          "@system-service"
          "~@privileged"
        ];

        LogExtraFields = node.logFields [ "DSV41_STAGE=gateway" ];
        SyslogIdentifier = "dsv41-gateway";
      };
    };

    users.users.dsv41-gateway = {
      isSystemUser = true;
      group = "dsv41-gateway";
      description = "Gateway of dsv41";
    };
    users.groups.dsv41-gateway = { };

    # Client keys are read again when they change, so the file itself is the gateway's. One that cannot be given to it
    # (a read-only secret) reaches it as the credential, as it was when the gateway started.
    systemd.tmpfiles.rules = [
      "z ${node.path gateway.keys_file} 0600 dsv41-gateway dsv41-gateway -"
    ];

    networking.firewall.allowedTCPPorts = lib.mkIf (cfg.openFirewall && !onLoopback) [ gateway.port ];
  };
}
