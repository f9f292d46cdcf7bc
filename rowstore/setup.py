"""Build the Cython modules; everything else is in pyproject.toml.

Switches, all environment variables because pip passes no arguments:
  DSV41_ROWSTORE_DEBUG=1        debug information, little optimisation
  DSV41_ROWSTORE_SANITIZE=LIST  e.g. address,undefined (run the tests under LD_PRELOAD=libasan.so)
Bounds checks stay on for Python objects and memory views: the paths that must be fast use pointers.
Compiler flags that name a directory (-ffile-prefix-map) belong in CFLAGS, never here: Cython copies
`extra_compile_args` into the C file, which would put the build directory into the wheel.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from Cython.Build import cythonize
except ImportError:  # `pip install --no-build-isolation` in an environment without it
    sys.exit("dsv41-rowstore needs Cython 3.1 or newer to build. Run `pip install 'Cython>=3.1,<4'` first.")

PACKAGE = "dsv41_rowstore"
DEBUG = os.environ.get("DSV41_ROWSTORE_DEBUG") == "1"
SANITIZE = os.environ.get("DSV41_ROWSTORE_SANITIZE", "")


def missing_tool() -> str | None:
    """The one sentence that says why this machine cannot build C extensions, or None."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    compiler = shlex.split(command)[0]
    if shutil.which(compiler) is None:
        return (
            f"dsv41-rowstore is compiled at install time and the C compiler `{compiler}` was not found. "
            "Install gcc (Debian and Ubuntu: apt install gcc) or set CC, then run this again."
        )
    headers = [Path(sysconfig.get_path(name)) / "Python.h" for name in ("include", "platinclude")]
    if not any(header.is_file() for header in headers):
        return (
            f"dsv41-rowstore is compiled at install and the Python headers ({headers[0]}) were not found. "
            "Install them (Debian and Ubuntu: apt install python3-dev), then run this again."
        )
    return None


class Build(build_ext):
    def run(self) -> None:
        if self.extensions and (why := missing_tool()):
            sys.exit(why)
        self.parallel = self.parallel or min(4, os.cpu_count() or 1)
        super().run()


def extensions() -> list[Extension]:
    compile_args = ["-std=gnu11", "-fno-strict-aliasing", "-Wno-unused-function", "-Wno-unreachable-code"]
    link_args: list[str] = []
    compile_args += ["-O1", "-g"] if DEBUG or SANITIZE else ["-O3"]
    if SANITIZE:
        compile_args += [
            f"-fsanitize={SANITIZE}",
            "-fno-omit-frame-pointer",
            "-fno-sanitize-recover=undefined",
        ]
        link_args += [f"-fsanitize={SANITIZE}"]
    return [
        Extension(
            f"{PACKAGE}.{source.stem}",
            [f"{PACKAGE}/{source.name}"],
            depends=sorted(str(p) for p in Path(PACKAGE).glob("*.h")),
            extra_compile_args=compile_args,
            extra_link_args=link_args,
        )
        for source in sorted(Path(PACKAGE).glob("*.pyx"))
    ]


setup(
    ext_modules=cythonize(
        extensions(),
        compiler_directives={
            "language_level": 3,
            "cdivision": True,
            "embedsignature": True,
        },
    ),
    cmdclass={"build_ext": Build},
)
