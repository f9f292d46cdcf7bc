# Options of NixOS that our modules and example machines set, by their real names and types. Nothing here is of type
# "anything": a misspelt option is refused, as it would be by NixOS.
{ lib, pkgs, ... }:
let
  inherit (lib) mkOption types;
  option =
    type: default:
    mkOption {
      inherit type default;
      description = "As in NixOS.";
    };
  attrsOfAtoms = types.attrsOf (
    types.oneOf [
      types.bool
      types.int
      types.str
    ]
  );
in
{
  options = {
    assertions = option (types.listOf types.raw) [ ];
    warnings = option (types.listOf types.str) [ ];
    nixpkgs.hostPlatform = option types.str "aarch64-linux";
    system.preSwitchChecks = option (types.attrsOf types.lines) { };
    system.stateVersion = option types.str "26.05";

    boot.loader.grub.enable = option types.bool true;
    boot.loader.systemd-boot.enable = option types.bool false;
    boot.loader.efi.canTouchEfiVariables = option types.bool false;
    boot.growPartition = option types.bool false;
    boot.initrd.availableKernelModules = option (types.listOf types.str) [ ];
    nixpkgs.config.allowUnfree = option types.bool false;
    boot.kernelModules = option (types.listOf types.str) [ ];
    boot.kernel.sysctl = option attrsOfAtoms { };
    boot.supportedFilesystems = option (types.listOf types.str) [ ];

    environment.systemPackages = option (types.listOf types.package) [ ];
    environment.etc = option (types.attrsOf (
      types.submodule {
        options.source = option (types.nullOr types.path) null;
        options.text = option (types.nullOr types.lines) null;
      }
    )) { };

    fileSystems = option (types.attrsOf (
      types.submodule {
        options = {
          device = option (types.nullOr types.str) null;
          fsType = option types.str "auto";
          autoResize = option types.bool false;
          options = option (types.listOf types.str) [ ];
        };
      }
    )) { };

    networking.rxe.enable = option types.bool false;
    networking.rxe.interfaces = option (types.listOf types.str) [ ];
    virtualisation.podman.enable = option types.bool false;
    virtualisation.podman.package = option types.package pkgs.podman;
    hardware.nvidia-container-toolkit.enable = option types.bool false;
    virtualisation.vlans = option (types.listOf types.int) [ 1 ];
    virtualisation.memorySize = option types.int 1024;
    # Not evaluated: a system within a system is NixOS's own business.
    specialisation = option (types.attrsOf types.raw) { };
    networking.hostName = option types.str "nixos";
    networking.dhcpcd.denyInterfaces = option (types.listOf types.str) [ ];
    networking.networkmanager.unmanaged = option (types.listOf types.str) [ ];
    networking.defaultGateway = option (types.nullOr types.str) null;
    networking.nameservers = option (types.listOf types.str) [ ];
    networking.interfaces = option (types.attrsOf (
      types.submodule {
        options.ipv4.addresses = option (types.listOf (
          types.submodule {
            options.address = mkOption { type = types.str; description = "As in NixOS."; };
            options.prefixLength = mkOption { type = types.int; description = "As in NixOS."; };
          }
        )) [ ];
      }
    )) { };
    networking.nftables.enable = option types.bool false;
    networking.firewall = {
      allowedTCPPorts = option (types.listOf types.port) [ ];
      extraInputRules = option types.lines "";
      trustedInterfaces = option (types.listOf types.str) [ ];
    };

    security.polkit.enable = option types.bool false;
    security.polkit.extraConfig = option types.lines "";

    nix.settings.experimental-features = option (types.listOf types.str) [ ];
    services.openssh.enable = option types.bool false;
    services.nfs.server.enable = option types.bool false;
    services.nfs.server.exports = option types.lines "";
    services.nfs.settings = option (types.attrsOf attrsOfAtoms) { };

    users.users = option (types.attrsOf (
      types.submodule {
        options = {
          isSystemUser = option types.bool false;
          group = option types.str "";
          extraGroups = option (types.listOf types.str) [ ];
          description = option types.str "";
          openssh.authorizedKeys.keys = option (types.listOf types.str) [ ];
        };
      }
    )) { };
    users.groups = option (types.attrsOf (types.submodule { options = { }; })) { };
  };
}
