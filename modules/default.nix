# What a machine of a fleet is, in the order of the boot: config, fabric, share, pack, rank (with the engine), gateway.
{
  imports = [
    ./settings.nix
    ./assertions.nix
    ./secrets.nix
    ./fabric.nix
    ./share.nix
    ./pack.nix
    ./rank.nix
    ./container.nix
    ./supervisor.nix
    ./probe.nix
    ./firewall-look.nix
    ./guard.nix
    ./gateway.nix
    ./clock-cap.nix
    ./switch-checks.nix
  ];
}
