#!/usr/bin/env python3
"""Make .venv-clients: clients that tests run against the gateway. Standard library only; does nothing when up to date.

They are not in .venv, because what they pin is nobody else's business, and not in .venv-engine, because that is made as
SGLang asks. An interrupted run is never trusted: the stamp is written last, and a stale environment is made anew.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-clients"
STAMP = VENV / "dsv41.stamp"
PINS = ROOT / "tests/clients/requirements.txt"
NEEDED_MIB = 800


def fingerprint() -> str:
    return hashlib.sha256(sys.version.encode() + PINS.read_bytes() + Path(__file__).read_bytes()).hexdigest()


def main() -> int:
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return 0
    shutil.rmtree(VENV, ignore_errors=True)
    free = shutil.disk_usage(ROOT).free >> 20
    if free < NEEDED_MIB:
        print(f"make: {ROOT} has {free} MiB free, {NEEDED_MIB} are needed. Free some space.", file=sys.stderr)
        return 69
    print("make: building .venv-clients (about 125 MB to download; no torch in here)", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    # Compiling every file takes as long as installing them, and a test imports few of them.
    pip = [str(VENV / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    result = subprocess.run([*pip, "--no-deps", "--no-compile", "-r", str(PINS)], cwd=ROOT, check=False)
    if result.returncode:
        print("make: pip could not build .venv-clients (see above). Check the network, then run make again.",
              file=sys.stderr)  # fmt: skip
        return 69
    STAMP.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
