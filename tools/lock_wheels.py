#!/usr/bin/env python3
"""Make nix/wheels.lock.json: the wheels of the engine on a Spark, as pip's own resolver chooses them.

    tools/lock_wheels.py                    resolve and write the lock (about four minutes)
    tools/lock_wheels.py --report FILE      write it from a report that pip made before

Nothing is installed. The lock names no host: where a file is fetched from is nix/engine/wheel.nix's business. An engine
bump edits REQUIREMENTS, runs this, and reads the diff.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pip
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "nix/wheels.lock.json"

REQUIREMENTS = ("sglang==0.5.23",)
PYTHON = "3.12"
"""SGLang's own aarch64 wheel is for cp312 alone."""
OLDEST_GLIBC_MINOR, NEWEST_GLIBC_MINOR = 17, 39
"""Each minor version is a platform of its own to pip; NCCL's wheel is tagged 2_18 and found by no other."""

TARGET = {
    "implementation_name": "cpython",
    "implementation_version": f"{PYTHON}.0",
    "os_name": "posix",
    "platform_machine": "aarch64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": f"{PYTHON}.0",
    "python_version": PYTHON,
    "sys_platform": "linux",
}

# pip takes --platform for the choice of files and this machine for the markers of requirements, so it is told about a
# Spark before it starts. Asked plainly on x86-64 it chooses 207 wheels, not 208, for sglang 0.5.23: without `av` and
# `decord2`, which SGLang asks for on ARM alone, and with `torchcodec`, which it asks for everywhere else.
PIP_FOR_TARGET = """
import json, sys
from pip._vendor.packaging import markers
here = markers.default_environment
target = json.loads(sys.argv[1])
markers.default_environment = lambda: {**here(), **target}
from pip._internal.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def resolve(report: Path, scratch: Path) -> None:
    """Let pip write its report. Raises CalledProcessError; pip has said why."""
    command = [sys.executable, "-c", PIP_FOR_TARGET, json.dumps(TARGET), "install", "--dry-run", "--ignore-installed"]
    command += ["--quiet", "--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON]
    command += ["--target", str(scratch), "--report", str(report)]
    for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none"):
        command += ["--abi", abi]
    for minor in range(NEWEST_GLIBC_MINOR, OLDEST_GLIBC_MINOR - 1, -1):
        command += ["--platform", f"manylinux_2_{minor}_aarch64"]
    # Files and limits of this machine must not decide what a Spark runs.
    environment = {name: value for name, value in os.environ.items() if name not in ("PIP_FIND_LINKS",)}
    environment["PIP_CONFIG_FILE"] = os.devnull
    subprocess.run([*command, "--platform", "manylinux2014_aarch64", *REQUIREMENTS], check=True, env=environment)


def lock_of(report: dict[str, Any]) -> dict[str, Any]:
    """The lock's content from pip's report.

    Raises: ValueError naming the package, when a file is no wheel, has no SHA-256, or a requirement was left out.
    """
    by_name = {canonicalize_name(item["metadata"]["name"]): item for item in report["install"]}
    needs = closure(by_name)
    if unasked := sorted(by_name.keys() - needs.keys()):
        raise ValueError(f"pip chose {', '.join(unasked)}, which nothing asks for")
    return {
        "format": 1,
        "system": "aarch64-linux",
        "python": PYTHON,
        "requirements": list(REQUIREMENTS),
        "wheels": [wheel(name, by_name[name], needs[name]) for name in sorted(by_name)],
    }


def closure(by_name: dict[str, Any]) -> dict[str, set[str]]:
    """What each package asks for on a Spark, with the extras it is asked for with."""
    needs: dict[str, set[str]] = {}
    seen: set[tuple[str, str]] = set()
    todo = [("the requirements", Requirement(text)) for text in REQUIREMENTS]
    while todo:
        asker, requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name not in by_name:
            raise ValueError(f"{asker} needs {requirement}, which pip's report does not have")
        version = by_name[name]["metadata"]["version"]
        if not requirement.specifier.contains(version, prereleases=True):
            raise ValueError(f"{asker} needs {requirement}, but pip chose {version}")
        needs.setdefault(name, set())
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in by_name[name]["metadata"].get("requires_dist", ()):
                asked = Requirement(text)
                if asked.marker is None or asked.marker.evaluate({**TARGET, "extra": extra}):
                    needs[name].add(canonicalize_name(asked.name))
                    todo.append((name, asked))
    return needs


def wheel(name: str, item: dict[str, Any], needs: Iterable[str]) -> dict[str, Any]:
    """One line of the lock."""
    url = item["download_info"]["url"].partition("#")[0]
    # Where the index keeps the file, by the file's own BLAKE2: packages/xx/yy/…. The host is not part of it.
    path, _, file = url.rpartition("/")
    file = file.replace("%2B", "+")
    place = re.search("packages/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}$", path)
    archive = item["download_info"].get("archive_info", {})
    sha256 = archive.get("hashes", {}).get("sha256") or archive.get("hash", "").removeprefix("sha256=")
    if not file.endswith(".whl"):
        raise ValueError(f"{name}: {file} is no wheel")
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ValueError(f"{name}: {file} has no SHA-256")
    if place is None:
        raise ValueError(f"{name}: {file} is not where the index keeps files by their hash")
    parse_wheel_filename(file)
    python, abi, platform = file.removesuffix(".whl").rsplit("-", 3)[1:]
    metadata = item["metadata"]
    return {
        "name": name,
        "version": metadata["version"],
        "file": file,
        "path": place[0],
        "sha256": sha256,
        "python": python,
        "abi": abi,
        "platform": platform,
        "licence": licence(metadata),
        "needs": sorted(needs),
    }


def licence(metadata: dict[str, Any]) -> str:
    """What the package says its licence is; `unstated` where it says nothing a line can hold."""
    if expression := metadata.get("license_expression"):
        return str(expression)
    said = [c.rpartition(" :: ")[2] for c in metadata.get("classifier", ()) if c.startswith("License :: ")]
    said = [c for c in said if c != "OSI Approved"]
    text = " ".join(str(metadata.get("license", "")).split()).replace("UNKNOWN", "")
    if text and len(text) <= 60:
        return text
    return " AND ".join(sorted(said)) or (f"{text[:57]}..." if text else "unstated")


def text_of(lock: dict[str, Any]) -> str:
    """JSON with one wheel a line, so that a bump can be read as a diff."""
    head = {key: value for key, value in lock.items() if key != "wheels"}
    lines = ",\n".join(f"    {json.dumps(entry, ensure_ascii=False)}" for entry in lock["wheels"])
    return json.dumps(head, indent=2).removesuffix("\n}") + f',\n  "wheels": [\n{lines}\n  ]\n}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, metavar="FILE", help="pip's report, instead of asking pip")
    args = parser.parse_args()
    if int(pip.__version__.partition(".")[0]) < 25:
        print(f"lock_wheels: pip {pip.__version__} does not report licences. Use 25 or newer.", file=sys.stderr)
        return 69
    with tempfile.TemporaryDirectory() as scratch:
        report = args.report or Path(scratch, "report.json")
        if args.report is None:
            try:
                resolve(report, Path(scratch, "target"))
            except subprocess.CalledProcessError as error:
                return error.returncode
        try:
            text = text_of(lock_of(json.loads(report.read_text())))
        except ValueError as error:
            print(f"lock_wheels: {error}. Nothing was written.", file=sys.stderr)
            return 78
    LOCK.write_text(text)
    print(f"{LOCK.relative_to(ROOT)}: {text.count('sha256')} wheels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
