# Builds the row store's wheel in the current directory, a copy of rowstore/, into dist/: the same bytes wherever and
# whenever it runs with the same tools. Sourced by nix/rowstore.nix and nix/rowstore-raw.nix; `python` is on PATH and has
# setuptools and Cython.
export SOURCE_DATE_EPOCH=1 PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 LC_ALL=C TZ=UTC
# In CFLAGS and not in setup.py: Cython copies what it is given there into the C file. A wheel's ABI tag would be the
# machine's; the directory and the compiler's name must not be.
export CFLAGS="${CFLAGS-} -g0 -fno-ident -ffile-prefix-map=$PWD=/build"
export LDFLAGS="${LDFLAGS-} -Wl,--build-id=none"
python -c 'from setuptools.build_meta import build_wheel; build_wheel("dist")'
