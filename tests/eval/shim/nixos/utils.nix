# The module argument `utils` of NixOS.
{ lib }:
rec {
  escapeSystemdExecArg =
    arg:
    let
      text =
        if builtins.isPath arg then
          "${arg}"
        else if builtins.isString arg || builtins.isInt arg || builtins.isFloat arg || lib.isDerivation arg then
          toString arg
        else
          throw "escapeSystemdExecArg only allows strings, paths, numbers and derivations";
    in
    lib.replaceStrings [ "%" "$" ] [ "%%" "$$" ] (builtins.toJSON text);
  escapeSystemdExecArgs = lib.concatMapStringsSep " " escapeSystemdExecArg;
}
