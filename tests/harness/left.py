"""What a demo can leave behind on a machine: its processes, links, mounts, listening sockets."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Left:
    """One look; subtract two to see what came."""

    processes: frozenset[str] = field(default_factory=frozenset)
    links: frozenset[str] = field(default_factory=frozenset)
    mounts: frozenset[str] = field(default_factory=frozenset)
    listening: frozenset[str] = field(default_factory=frozenset)

    def __sub__(self, before: Left) -> Left:
        return Left(
            self.processes - before.processes,
            self.links - before.links,
            self.mounts - before.mounts,
            self.listening - before.listening,
        )


def look(state_root: Path) -> Left:
    """This machine now, as far as the demo with this state directory is concerned."""
    return Left(
        frozenset(_processes(str(state_root))),
        frozenset(name for _, name in socket.if_nameindex() if name.startswith("dsv41-")),
        frozenset(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        frozenset(_listening(_ports(state_root))),
    )


def _processes(marker: str) -> list[str]:
    """Processes that name the state directory in their command line or their environment."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            argv = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
            environment = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if marker.encode() in argv + environment:
            found.append(f"{name} {argv.decode(errors='replace')[:120]}")
    return found


def _ports(state_root: Path) -> set[int]:
    path = state_root / "settings.json"
    if not path.exists():
        return set()
    raw = json.loads(path.read_text())
    ports = {raw["gateway"]["port"]}
    for node in raw["fleet"]["nodes"].values():
        ports |= {node["supervisor_port"], node["engine_port"]}
    return ports


def _listening(ports: set[int]) -> list[str]:
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    addresses = [fields[1] for fields in lines if fields[3] == "0A"]
    return [a for a in addresses if int(a.split(":")[1], 16) in ports]
