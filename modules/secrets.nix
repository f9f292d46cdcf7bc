# Secrets stay out of the Nix store, where every user can read them. Types refuse the paths of their files there
# (nix/options-from-schema.nix); who makes those files, and what else may be a secret, is looked at here.
{
  config,
  lib,
  utils,
  ...
}@args:
let
  cfg = config.services.dsv41;
  node = import ./node.nix args;
  inherit (cfg.settings)
    alerts
    engine
    fleet
    gateway
    ;
  files = lib.mapAttrs (_: node.path) (
    lib.filterAttrs (_: path: path != null) {
      "fleet.key_file" = fleet.key_file;
      "gateway.keys_file" = gateway.keys_file;
      "gateway.tls.key_file" = gateway.tls.key_file;
      "alerts.webhook_url_file" = alerts.webhook_url_file;
    }
  );
  optionsOf = path: lib.attrNames (lib.filterAttrs (_: other: other == path) files);

  # A link to somewhere else, as secret managers make it, is no copy.
  inStore =
    file:
    file.text or null != null
    || builtins.isPath file.source
    || lib.hasPrefix builtins.storeDir (toString file.source);
  madeByNix =
    path:
    let
      file = config.environment.etc.${lib.removePrefix "/etc/" path} or null;
    in
    lib.hasPrefix "/etc/" path && file != null && inStore file;

  # What engines and hubs call theirs. Not every TOKEN: SGLang counts tokens.
  secret = "HF_TOKEN|.*_(API_KEY|SECRET|PASSWORD|ACCESS_KEY|(AUTH|ACCESS|HUB)_TOKEN)";

  refuseIf = wrong: message: {
    assertion = !wrong;
    message = "services.dsv41.settings.${message}";
  };
in
{
  config.assertions = lib.mkIf cfg.enable (
    lib.mapAttrsToList (
      option: path:
      refuseIf (madeByNix path)
        "${option} is ${path}, and environment.etc makes that file from the Nix store, where every user can read it. Take it out of environment.etc and write it on the node."
    ) files
    ++ map (
      path:
      refuseIf (lib.length (optionsOf path) > 1)
        "${lib.concatStringsSep ", " (optionsOf path)} are the same file ${path}. Each secret has its own: they belong to different users."
    ) (lib.unique (lib.attrValues files))
    ++ map (
      variable:
      refuseIf (builtins.match secret variable != null)
        "engine.environment.${variable} looks like a secret, and settings are in the Nix store, where every user can read them. Take it out: a rank reads the checkpoint from its directory and needs no account."
    ) (lib.attrNames engine.environment)
  );
}
