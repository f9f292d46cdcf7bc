# dsv41-adapters: the SGLang plugin. Only `spec.py` files are read outside the engine, and they need pydantic alone;
# SGLang and torch come from the engine's own environment and are no dependency here.
{
  lib,
  buildPythonPackage,
  setuptools,
  pydantic,
}:
buildPythonPackage {
  pname = "dsv41-adapters";
  version = "0.1.0";
  pyproject = true;
  src = ../adapters;

  build-system = [ setuptools ];
  dependencies = [ pydantic ];

  pythonImportsCheck = [ "dsv41_adapters.registry" ];

  meta = {
    description = "Gated changes to SGLang, each off until it is asked for";
    license = lib.licenses.asl20;
    platforms = lib.platforms.linux;
  };
}
