# system.build.toplevel: refuses failed assertions with NixOS's words, and depends on everything that was rendered.
{
  config,
  lib,
  pkgs,
  ...
}:
{
  options.system.build.toplevel = lib.mkOption {
    type = lib.types.package;
    description = "As in NixOS.";
  };

  config.system.build.toplevel =
    let
      failed = lib.filter (assertion: !assertion.assertion) config.assertions;
    in
    if failed != [ ] then
      throw "\nFailed assertions:\n${lib.concatMapStringsSep "\n" (assertion: "- ${assertion.message}") failed}"
    else
      pkgs.runCommand "nixos-system-${config.networking.hostName}" {
        passAsFile = [ "rendered" ];
        rendered = lib.toJSON {
          inherit (config) boot environment fileSystems networking services systemd users;
          checks = config.system.preSwitchChecks;
        };
      } "";
}
