"""What a demo can leave behind on a machine: its processes, links, mounts, listening sockets."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
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
        frozenset(_ways_in(state_root)),
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


def _ways_in(state_root: Path) -> list[str]:
    """Links of this machine with a route to the demo's own management network (two demos never share one)."""
    path = state_root / "settings.json"
    if not path.exists():
        return []
    nodes = json.loads(path.read_text())["fleet"]["nodes"].values()
    addresses = [IPv4Address(node["management_address"]) for node in nodes]
    found = []
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        link, destination, *_, mask = line.split()[:8]
        # The kernel prints both as little-endian hexadecimal.
        as_address = [IPv4Address(bytes.fromhex(text)[::-1]) for text in (destination, mask)]
        network = IPv4Network("/".join(map(str, as_address)))
        if network.prefixlen and any(address in network for address in addresses):
            found.append(link)
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
