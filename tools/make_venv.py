#!/usr/bin/env python3
"""Make .venv: supervisor, adapters, row store and test tools. Standard library only; does nothing when up to date.

Every missing thing is named in one sentence before anything is installed. An interrupted run is never trusted: the
stamp is written last.
"""

import sys

# This file is parsed by whatever python3 there is: no syntax newer than 3.6 above or below this check.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        "make: Python {}.{} is too old, 3.11 or newer is needed. "
        "Run make PYTHON=python3.12, or install a newer one.".format(*sys.version_info)
    )

import hashlib
import shutil
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "dsv41.stamp"
NEEDED_MIB = 400
WATCHED = ("supervisor/pyproject.toml", "adapters/pyproject.toml", "rowstore", "tools/make_venv.py")
BUILT = {".py", ".pyx", ".pxd", ".h", ".toml"}


def missing() -> list[str]:
    """What this machine lacks, each with what to do about it."""
    problems = []
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        problems.append("Python's venv module is missing. Install it: apt-get install python3-venv")
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        problems.append("there is no C compiler. Install one: apt-get install gcc libc6-dev")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        problems.append(f"{header} is missing. Install the headers: apt-get install python3-dev")
    free = shutil.disk_usage(ROOT).free >> 20
    if free < NEEDED_MIB and not STAMP.exists():
        problems.append(f"{ROOT} has {free} MiB free, {NEEDED_MIB} are needed. Free some space.")
    return problems


def fingerprint() -> str:
    """Changes when anything that is built or pinned changes."""
    digest = hashlib.sha256(sys.version.encode())
    for name in WATCHED:
        path = ROOT / name
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in BUILT)
        for file in files:
            if "build" not in file.relative_to(ROOT).parts:
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def main() -> int:
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return 0
    problems = missing()
    if problems:
        for problem in problems:
            print("make: " + problem, file=sys.stderr)
        return 69
    print("make: building .venv (about 40 MB to download; no torch in here)", file=sys.stderr, flush=True)
    STAMP.unlink(missing_ok=True)
    if not (VENV / "bin/python").exists():
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip = [str(VENV / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    result = subprocess.run(
        [*pip, "./rowstore", "-e", "./adapters", "-e", "./supervisor[test,lint]"], cwd=ROOT, check=False
    )
    if result.returncode:
        print("make: pip could not build .venv (see above). Check network and compiler, then run make again.",
              file=sys.stderr)  # fmt: skip
        return 69
    if subprocess.run([str(VENV / "bin/python"), "-c", "import torch"], capture_output=True).returncode == 0:
        print("make: torch is importable in .venv, where it must not be. Remove .venv and run make again.",
              file=sys.stderr)  # fmt: skip
        return 78
    STAMP.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
