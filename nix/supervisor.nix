# dsv41-supervisor: the daemon of every node, the gateway, and the command `dsv41`.
{
  lib,
  buildPythonPackage,
  setuptools,
  pydantic,
  aiohttp,
  httptools,
  uvloop,
  pyroute2,
  dbus-fast,
  rich,
  adapters,
  rowstore,
  python,
}:
buildPythonPackage {
  pname = "dsv41-supervisor";
  version = "0.1.0";
  pyproject = true;
  src = ../supervisor;

  build-system = [ setuptools ];
  dependencies = [
    pydantic
    aiohttp
    httptools
    uvloop
    pyroute2
    dbus-fast
    rich
    adapters
    rowstore
  ];

  pythonImportsCheck = [ "dsv41_supervisor.settings" ];

  # A dependency that pulls torch in would cost each node several hundred megabytes of GPU memory, all the time.
  postInstallCheck = ''
    ${python.interpreter} -c 'import importlib.util as u, sys; sys.exit("torch is importable: the supervisor must never hold it" if u.find_spec("torch") else 0)'
  '';

  meta = {
    description = "Starts, watches and restarts a DeepSeek-V4.1-Flash fleet on DGX Sparks";
    license = lib.licenses.asl20;
    platforms = lib.platforms.linux;
    mainProgram = "dsv41";
  };
}
