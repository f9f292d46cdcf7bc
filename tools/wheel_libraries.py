#!/usr/bin/env python3
"""Make nix/wheels.libraries.json: where each wheel's shared libraries come from, read off the ELF files themselves.

    tools/wheel_libraries.py DIRECTORY      of all wheels of nix/wheels.lock.json, about 4 GB

For a wheel that loads a library which is not its own: the `wheels` that bring it, the `system` libraries that nixpkgs
brings, and those that are `absent`. Which of the last may be absent, and why, is nix/engine/libraries.nix's business.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import zipfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "nix/wheels.lock.json"
LIBRARIES = ROOT / "nix/wheels.libraries.json"
AARCH64 = 183

BASE = {
    "ld-linux-aarch64.so.1", "libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "libresolv.so.2", "librt.so.1",
    "libutil.so.1", "libgcc_s.so.1", "libstdc++.so.6",
}  # fmt: skip
"""What every program of nixpkgs' stdenv has."""
SYSTEM = {"libgomp.so.1.0.0", "libibverbs.so.1", "libmlx5.so.1", "librdmacm.so.1", "libz.so.1"}
"""What nixpkgs brings on request. These win over a wheel that bundles one for itself."""


class Elf(NamedTuple):
    name: str
    soname: str
    needed: list[str]


def read_elf(name: str, data: bytes) -> Elf | None:
    """The dynamic section of a 64-bit aarch64 file; None for anything else."""
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18)[0] != AARCH64:
        return None
    offset = struct.unpack_from("<Q", data, 32)[0]
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", data, offset + i * size) for i in range(count)]
    loads = [(address, at, length) for kind, _, at, address, _, length, _, _ in headers if kind == 1]
    dynamic = next(((at, length) for kind, _, at, _, _, length, _, _ in headers if kind == 2), None)
    if dynamic is None:
        return None
    entries = []
    for at in range(dynamic[0], sum(dynamic), 16):
        tag, value = struct.unpack_from("<QQ", data, at)
        if tag == 0:
            break
        entries.append((tag, value))
    table = next(value for tag, value in entries if tag == 5)
    strings = next(at + table - address for address, at, length in loads if address <= table < address + length)

    def string(value: int) -> str:
        return data[strings + value : data.index(b"\0", strings + value)].decode()

    sonames = [string(value) for tag, value in entries if tag == 14]
    return Elf(name, sonames[0] if sonames else "", [string(value) for tag, value in entries if tag == 1])


def elves(wheel: Path) -> list[Elf]:
    found = []
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            with archive.open(info) as file:
                if file.read(4) != b"\x7fELF":
                    continue
            if elf := read_elf(info.filename, archive.read(info)):
                found.append(elf)
    return found


def sources(lock: list[dict], files: dict[str, list[Elf]]) -> dict[str, dict[str, object]]:
    """For each wheel that needs any: {wheels: [...], system: [...], absent: [...]}."""
    names = {
        name: {n for elf in found for n in (elf.soname, PurePosixPath(elf.name).name) if n}
        for name, found in files.items()
    }
    result = {}
    for entry in lock:
        name = entry["name"]
        wanted = {n for elf in files.get(name, ()) for n in elf.needed} - BASE - names.get(name, set())
        wheels, absent = set(), []
        for library in sorted(wanted - SYSTEM):
            # NVIDIA's own, then what it asks for as a package, before what happens to have a file of that name.
            bringing = [n for n in names if library in names[n]]
            bringing.sort(key=lambda n: (not n.startswith("nvidia-"), n not in entry["needs"], n))
            if bringing:
                wheels.add(bringing[0])
            else:
                absent.append(library)
        if wanted:
            result[name] = {"wheels": sorted(wheels), "system": sorted(wanted & SYSTEM), "absent": absent}
    return result


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    lock = json.loads(LOCK.read_text())["wheels"]
    files = {}
    for entry in lock:
        if entry["platform"] == "any":
            continue
        wheel = Path(sys.argv[1], entry["file"])
        with wheel.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                print(f"wheel_libraries: {wheel} is not the file of the lock. Download it again.", file=sys.stderr)
                return 78
        files[entry["name"]] = elves(wheel)
    found = sources(lock, files)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
    LIBRARIES.write_text(f"{{\n{lines}\n}}\n")
    print(f"{LIBRARIES.relative_to(ROOT)}: {len(found)} wheels need libraries of others")
    return 0


if __name__ == "__main__":
    sys.exit(main())
