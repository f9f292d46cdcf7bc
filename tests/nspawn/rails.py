"""The rails of a declared triangle between machines with a real systemd-networkd.

A cable is a veth pair, each end named as the card's interface that the fleet file names: the rendered files match it as
they are. Each machine has a network of its own, and nothing outside of them is touched. What a veth pair is not: a card
with RDMA, with a permanent hardware path, or with an MTU that its driver may refuse.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Any

from declared import rendered, wait_for
from machine import OPT, Machine

MANAGEMENT = "enP7s7"
UNNAMED = "enp1s0f9np9"
"""A port that no fleet file names."""


@dataclass(frozen=True)
class Rail:
    """One end of a cable, as its rendered file says."""

    name: str
    file: str
    interface: str
    address: IPv4Interface


def rails_of(node: str) -> dict[str, Rail]:
    """By the cable's name."""
    found = {}
    for file, text in rendered(node).items():
        if match := re.fullmatch(r"20-dsv41-(.+)\.network", file):
            said = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
            found[match[1]] = Rail(match[1], file, said["Name"], IPv4Interface(said["Address"]))
    return found


@dataclass
class Wired:
    """A node's machine and its rails."""

    name: str
    machine: Machine
    rails: dict[str, Rail]

    def install(self) -> None:
        for file, text in rendered(self.name).items():
            if file.endswith(".network"):
                self.machine.write(f"/etc/systemd/network/{file}", text)
        # Where NixOS puts what modules say in boot.kernel.sysctl.
        self.machine.write("/etc/sysctl.d/60-nixos.conf", rendered(self.name)["sysctl.conf"])

    def ip(self, *args: str) -> Any:
        """What `ip -json` prints."""
        return json.loads(self.machine.run("ip", "-json", *args).stdout or "[]")

    def link(self, interface: str) -> dict[str, Any]:
        """What networkd says about a link."""
        return json.loads(self.machine.run("networkctl", "--json=short", "status", interface).stdout)

    def addresses(self, interface: str) -> list[str]:
        (link,) = self.ip("address", "show", "dev", interface)
        return [f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"]]

    @contextlib.contextmanager
    def addresses_seen(self) -> Iterator[Callable[[], str]]:
        """What becomes of addresses meanwhile, as `ip monitor` tells it."""
        log, mark = "/run/addresses-seen", "127.0.0.9/8"
        self.machine.run("sh", "-c", 'ip monitor address >"$1" 2>&1 & echo $! >"$1.pid"', "sh", log)

        def listens() -> bool:
            self.machine.run("ip", "address", "replace", mark, "dev", "lo")
            return mark in self.machine.run("cat", log).stdout

        try:
            wait_for(listens, "ip monitor to listen", 60, self)
            yield lambda: self.machine.run("cat", log).stdout
        finally:
            self.machine.run("sh", "-c", 'kill "$(cat "$1.pid")"', "sh", log)

    def ping(self, rail: Rail, target: str, packet_bytes: int) -> None:
        """One echo from the rail's address, not to be cut into fragments."""
        script = (
            "import sys; from dsv41_supervisor.doctor.deep.ping import ping; "
            "pinged = ping(sys.argv[1], sys.argv[2], packet_bytes=int(sys.argv[3]), wait_s=20, fragment=False); "
            "sys.exit(pinged.problem)"
        )
        program = (f"{OPT}/venv/bin/python", "-c", script)
        self.machine.run(*program, str(rail.address.ip), target, str(packet_bytes))


def plug(one: Wired, here: str, other: Wired, there: str) -> None:
    """A cable between two machines."""
    command = ["ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", str(other.machine.leader)]
    subprocess.run(["nsenter", f"--net=/proc/{one.machine.leader}/ns/net", *command], check=True, timeout=30)


def cables(nodes: list[Wired]) -> dict[str, tuple[Wired, Wired]]:
    """The two nodes of each cable, by its name."""
    ends: dict[str, list[Wired]] = {}
    for node in nodes:
        for name in node.rails:
            ends.setdefault(name, []).append(node)
    assert all(len(each) == 2 for each in ends.values()), ends
    return {name: (one, other) for name, (one, other) in ends.items()}
