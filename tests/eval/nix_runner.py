"""Nix for these tests: found, or put into a cache directory; run offline, with a store of its own.

nixpkgs is not needed: `shim/` stands in for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
OLDEST = (2, 18)
"""Nix 2.8 reads the modules but rejects the flake's `nixosModules.default`."""

INSTALL_TIMEOUT_S = 240
"""Below the limit of one test, so that the reason is told and not a timeout."""
RUN_TIMEOUT_S = 120

CONFIGURATION = """\
experimental-features = nix-command flakes
substituters =
build-users-group =
flake-registry =
warn-dirty = false
"""

# What the flake is made of; environments and caches of a checkout would only be copied into the store.
FLAKE_SOURCES = (
    "flake.nix", "flake.lock", "nix", "modules", "supervisor", "adapters", "rowstore", "tests/fleets",
    "tests/vm", "demo",
)  # fmt: skip
NOT_SOURCES = shutil.ignore_patterns(
    "__pycache__", "*.egg-info", "*.so", "*.c", "build", ".pytest_cache", ".ruff_cache", ".venv*"
)


class NixUnavailable(Exception):
    """Why there is no Nix here; the tests are skipped with this reason."""


@dataclass(frozen=True)
class Nix:
    """One Nix, one store, one copy of the flake's sources."""

    bin: Path
    work: Path
    source: Path

    def run(self, program: str, *args: str, timeout_s: float = RUN_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Run `nix` or `nix-instantiate`; output and errors as text, whatever the exit status."""
        return subprocess.run(
            [str(self.bin / program), *args],
            cwd=self.source,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def flake(self, command: list[str], *args: str) -> subprocess.CompletedProcess[str]:
        """Run a `nix` command on the flake: the stand-in for nixpkgs, no network, the lock left as it is."""
        return self.run(
            "nix", *command, *args, "--override-input", "nixpkgs", f"path:{HERE / 'shim'}",
            "--override-input", "nixos-dgx-spark", f"path:{HERE / 'shim/dgx-spark'}",
            "--offline", "--no-write-lock-file", "--store", str(self.work / "store"),
        )  # fmt: skip

    def evaluate(self, expression: str) -> subprocess.CompletedProcess[str]:
        """Evaluate an expression to JSON. `flake` (its outputs), `lib` and `machine` are in scope."""
        return self.run(
            "nix-instantiate", "--eval", "--strict", "--json", "--store", "dummy://",
            "--expr", self.scope(self.source) + expression,
        )  # fmt: skip

    def scope(self, source: Path) -> str:
        """What every expression begins with; the flake is that of `source`."""
        return f"""
          let
            nixpkgs = (import {HERE}/shim/flake.nix).outputs {{ self = {{ outPath = {HERE}/shim; }}; }} // {{
              outPath = "{HERE}/shim";
            }};
            flake = (import "{source}/flake.nix").outputs {{
              self = flake;
              inherit nixpkgs;
              nixos-dgx-spark = "{HERE}/shim/dgx-spark";
            }};
            inherit (nixpkgs) lib;
            machine = {{
              boot.loader.grub.enable = false;
              fileSystems."/" = {{ device = "none"; fsType = "tmpfs"; }};
              system.stateVersion = "26.05";
            }};
          in
        """

    def value(self, expression: str) -> Any:
        """The value of an expression; fails the test with Nix's own words when there is none."""
        done = self.evaluate(expression)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refusal(self, expression: str) -> str:
        """The last error of an expression that must not have a value."""
        done = self.evaluate(expression)
        assert done.returncode != 0, f"this has a value: {done.stdout[:200]}"
        return done.stderr.rpartition("error:")[2]

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.work / "home"),
            "XDG_CACHE_HOME": str(self.work / "cache"),
            "NIX_CONF_DIR": str(self.work / "etc"),
            "NIX_USER_CONF_FILES": "",
            "PATH": "/usr/bin:/bin",
        }


def prepare(work: Path) -> Nix:
    """A Nix ready to run below `work`. Raises NixUnavailable with the reason."""
    nix = find()
    for directory in ("home", "cache", "etc"):
        (work / directory).mkdir()
    (work / "etc/nix.conf").write_text(CONFIGURATION)
    source = work / "source"
    for name in FLAKE_SOURCES:
        here = REPOSITORY / name
        if here.is_dir():
            shutil.copytree(here, source / name, ignore=NOT_SOURCES)
        else:
            source.mkdir(exist_ok=True)
            shutil.copy2(here, source / name)
    return Nix(nix, work, source)


def find() -> Path:
    """Directory of `nix` and `nix-instantiate`: the machine's if recent enough, else a prefix made once."""
    found = shutil.which("nix")
    if found and _version(Path(found)) >= OLDEST:
        return Path(found).parent
    script = HERE / "get-nix.sh"
    key = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsv41"
    prefix = cache / f"nix-{key}"
    cache.mkdir(parents=True, exist_ok=True)
    # Two test runs at once make it once.
    with (cache / "nix.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not prefix.exists():
            _install(script, prefix)
    return prefix / "usr/bin"


def _install(script: Path, prefix: Path) -> None:
    # timeout(1) ends the script with all it started, and the script then removes what it had unpacked.
    done = subprocess.run(
        ["timeout", "--kill-after=10", str(INSTALL_TIMEOUT_S), str(script), str(prefix)],
        capture_output=True,
        text=True,
    )
    if done.returncode == 124:
        raise NixUnavailable(f"{script.name} had not ended after {INSTALL_TIMEOUT_S} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise NixUnavailable(f"{script.name} ended with {done.returncode}: {lines[-1]}")


def _version(nix: Path) -> tuple[int, ...]:
    text = subprocess.run([str(nix), "--version"], capture_output=True, text=True, timeout=30).stdout
    match = re.search(r"(\d+)\.(\d+)", text)
    return tuple(int(part) for part in match.groups()) if match else (0,)
