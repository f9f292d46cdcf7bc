# dsv41-rowstore: the Cython store that reads packed Engram rows.
{
  lib,
  buildPythonPackage,
  setuptools,
  cython,
}:
buildPythonPackage {
  pname = "dsv41-rowstore";
  version = "0.1.0";
  pyproject = true;
  src = ../rowstore;

  build-system = [
    setuptools
    cython
  ];

  # Every node must load the same bits, so the compiler is told nothing about where or when it ran. One script builds it
  # here and, for the tests, with a machine's own compiler (rowstore-raw.nix).
  dontUsePypaBuild = true;
  buildPhase = ''
    runHook preBuild
    . ${./rowstore-build.sh}
    runHook postBuild
  '';

  pythonImportsCheck = [ "dsv41_rowstore" ];

  meta = {
    description = "Packed Engram rows: written once, read from local NVMe while the engine runs";
    license = lib.licenses.asl20;
    platforms = lib.platforms.linux;
  };
}
