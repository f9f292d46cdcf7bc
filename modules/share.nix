# Stage 3, share: the head exports the checkpoint read-only over the rails, the workers mount it. Only with share.mode
# "nfs"; with "local" every node has its own copy and nothing is done here.
{
  config,
  lib,
  utils,
  ...
}@args:
let
  cfg = config.services.dsv41;
  node = import ./node.nix args;
  nfs = cfg.enable && cfg.settings.share.mode == "nfs";
  checkpoint = node.path cfg.settings.checkpoint.path;
  clients = lib.concatMap (peer: map (pair: pair.theirs) (node.reach peer)) (
    lib.attrNames node.peers
  );
  servers = map (pair: pair.theirs) (node.reach node.headName);
in
{
  config = lib.mkMerge [
    (lib.mkIf (nfs && node.isHead) {
      services.nfs.server = {
        enable = true;
        # Named addresses on the rails, and nobody's root: whoever gets there can read the weights and nothing else.
        exports = ''
          ${checkpoint} ${lib.concatMapStringsSep " " (client: "${client}(ro,root_squash,no_subtree_check,sec=sys)") clients}
        '';
      };
      services.nfs.settings.nfsd = {
        vers3 = false;
        vers4 = true;
        "vers4.2" = true;
      };
    })

    (lib.mkIf (nfs && !node.isHead && servers != [ ]) {
      boot.supportedFilesystems = [ "nfs" ];
      fileSystems.${checkpoint} = {
        # An address, not a name: no resolver is needed to boot.
        device = "${lib.head servers}:${checkpoint}";
        fsType = "nfs4";
        options = [
          "ro"
          "nodev"
          "nosuid"
          "noexec"
          "noatime"
          "vers=4.2"
          "rsize=1048576"
          # A head that hangs must cost its workers an error, not processes that no signal reaches.
          "softerr"
          "timeo=100"
          "retrans=3"
          "x-systemd.automount"
          "x-systemd.mount-timeout=30s"
          "_netdev"
          "nofail"
        ];
      };
    })
  ];
}
