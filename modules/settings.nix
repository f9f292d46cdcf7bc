# Stage 1, config: `services.dsv41.settings`, generated from the program's own schema and checked by the program in the
# build. Hand-written options are camelCase and Nix's own business; everything the program reads is under `settings`.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.services.dsv41;
  inherit (lib) mkOption types;
in
{
  options.services.dsv41 = {
    enable = lib.mkEnableOption "this machine as a node of a DeepSeek-V4.1-Flash fleet";

    package = mkOption {
      type = types.package;
      description = "The supervisor, the gateway and the command `dsv41`. All nodes need the same one: a mixture is refused at start.";
    };

    enginePackage = mkOption {
      type = types.nullOr types.package;
      default = null;
      description = "Environment with SGLang, the adapters and the row store. null leaves `settings.engine.python` to you; with `settings.engine.container` it is not used.";
    };

    node = mkOption {
      type = types.str;
      default = config.networking.hostName;
      defaultText = lib.literalExpression "config.networking.hostName";
      description = "Which of `settings.fleet.nodes` this machine is. A wrong name would run another node's rank; it must be one of the fleet's.";
    };

    settings = mkOption {
      type = types.submodule [
        {
          options = import ../nix/options-from-schema.nix { inherit lib; } (
            lib.importJSON ./settings.schema.json
          );
        }
        ./profiles/tp3.nix
        ./profiles/tp4.nix
      ];
      description = "The fleet, the same on all its machines; generated from the schema of the program that reads it.";
    };

    settingsFile = mkOption {
      type = types.path;
      readOnly = true;
      description = "The settings as the JSON file that every process reads, after `dsv41 check-config` accepted it in the build.";
    };
  };

  config = lib.mkIf cfg.enable {
    services.dsv41 = {
      settings.engine.python = lib.mkIf (cfg.enginePackage != null && cfg.settings.engine.container == null) (
        lib.mkDefault "${cfg.enginePackage}/bin/python3"
      );

      # What only pydantic knows (rules across fields) fails here, at `nixos-rebuild`, and not at the start of a rank.
      settingsFile =
        pkgs.runCommand "dsv41-settings.json"
          {
            settings = builtins.toJSON cfg.settings;
            passAsFile = [ "settings" ];
          }
          ''
            ${lib.getExe cfg.package} check-config "$settingsPath"
            cp "$settingsPath" "$out"
          '';
    };

    environment.systemPackages = [ cfg.package ];
    environment.etc."dsv41/settings.json".source = cfg.settingsFile;

    users.users.dsv41 = {
      isSystemUser = true;
      group = "dsv41";
      description = "Ranks and packing of dsv41";
    };
    users.groups.dsv41 = { };
  };
}
