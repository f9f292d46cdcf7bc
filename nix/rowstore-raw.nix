# The row store by the same script as rowstore.nix, with the compiler and Python of the machine instead of nixpkgs': shows
# where nixpkgs is not that the build is reproducible. Inputs are hashed into the store; the toolchain is the host's.
{
  system ? builtins.currentSystem,
  # Prefix of a Python with headers.
  python,
  # A site-packages directory with setuptools and Cython.
  site,
}:
let
  part =
    name:
    builtins.path {
      path = site + "/${name}";
      inherit name;
      filter = path: _: builtins.match ".*/(__pycache__|.*\\.pyc)" path == null;
    };
  tools = [
    "Cython"
    "_distutils_hack"
    "cython.py"
    "setuptools"
  ];
in
derivation {
  name = "dsv41-rowstore-raw-0.1.0";
  inherit system python tools;
  paths = map part tools;
  script = ./rowstore-build.sh;
  src = builtins.path {
    path = ../rowstore;
    name = "rowstore";
    filter =
      path: type:
      type == "directory" && builtins.match ".*/(build|[^/]*\\.egg-info|__pycache__|\\.[^/]*)" path == null
      || builtins.match ".*\\.(py|pyi|pyx|pxd|h|toml|md|typed)" path != null;
  };
  builder = "/bin/sh";
  args = [
    "-euc"
    ''
      export PATH="$python/bin:/usr/bin:/bin" HOME="$PWD"
      mkdir site source bin
      set -- $tools
      for path in $paths; do ln -s "$path" "site/$1"; shift; done
      export PYTHONPATH="$PWD/site"
      cp -r "$src/." source
      chmod -R u+w source
      ln -s "$python/bin/python3" bin/python
      export PATH="$PWD/bin:$PATH"
      cd source
      . "$script"
      mkdir -p "$out"
      cp dist/*.whl "$out/"
    ''
  ];
}
