"""A fleet of supervisors on the three guests, and `dsv41 doctor` on the first of them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bed import Bed, Guest, rdma_device
from dsv41_supervisor.demo.fleet_settings import Ports, demo_settings
from dsv41_supervisor.demo.network import Mode
from dsv41_supervisor.settings import EngineKind, Settings

SETTINGS = "/etc/dsv41/settings.json"
STATE = Path("/var/lib/dsv41")
ENVIRONMENT = ("env", "PYTHONPATH=/opt/dsv41/src:/opt/dsv41/site", "PYTHONUNBUFFERED=1")
FLEET_KEY = "f" * 64
READ_S = 60
"""How long doctor may wait for one fact: a guest is some twenty times slower than the machine it is on."""
ANSWER_S = 240
LOUD = ("refusal", "warning")


@dataclass
class Visit:
    """What one `dsv41 doctor` said."""

    status: int
    said: dict[str, Any]

    @property
    def findings(self) -> list[dict[str, Any]]:
        return [f for node in self.said["nodes"].values() for f in node["findings"]] + self.said["findings"]

    @property
    def bad(self) -> set[tuple[str, str | None, str | None]]:
        """Check, node and rail of everything that is not good."""
        return {(f["check"], f["node"], f["rail"]) for f in self.findings if f["severity"] in LOUD}

    def beyond(self, healthy: Visit) -> set[tuple[str, str | None, str | None]]:
        """What is bad now and was good then."""
        return self.bad - healthy.bad

    def sentences(self) -> list[str]:
        """Everything that is not good, for a failing test."""
        return [f"{f['check']} {f['node']}: {f['what']}" for f in self.findings if f["severity"] in LOUD]

    def traffic(self, test: str) -> dict[tuple[str, str], dict[str, Any]]:
        """Results of one test of --deep, by rail and sending node."""
        sent = [one for node in self.said["deep"].values() for one in node["traffic"] if one["test"] == test]
        return {(one["rail"], one["source"]): one for one in sent}

    def of(self, check: str) -> list[dict[str, Any]]:
        return [f for f in self.findings if f["check"] == check]

    def sentence(self, check: str, node: str) -> str:
        return " / ".join(f"{f['what']} {f['do_next']}" for f in self.of(check) if f["node"] == node)


def raw_settings(bed: Bed) -> dict[str, Any]:
    """The demo's fleet with the scripted engine, and the guests' RDMA devices on its rails."""
    network: Any = SimpleNamespace(
        nodes=bed.nodes, mode=Mode.NAMESPACES, topology="triangle", gateway_address=bed.nodes[0].management.ip
    )
    raw = demo_settings(
        network, state_root=STATE, tp=3, nodes=3, engine=EngineKind.SCRIPTED, engine_python=Path("/usr/bin/python3"),
        demo_dir=Path("/opt/dsv41/demo"), checkpoint_dir=Path("/srv/models/none"), revision="0" * 40, ports=Ports(),
    )  # fmt: skip
    for node in raw["fleet"]["nodes"].values():
        for rail in node["rails"].values():
            rail["rdma_device"] = rdma_device(rail["interface"])
    raw["guard"] = {"floor_bytes": 64 << 20}
    raw["supervisor"] |= {"peer_timeout_s": 30}
    return raw


@dataclass
class BedFleet:
    """Supervisors that run in the guests of `bed`."""

    bed: Bed
    settings: Settings

    def guest(self, node: str) -> Guest:
        return self.bed.guests[node]

    def start(self) -> None:
        text = self.settings.model_dump_json(exclude_unset=True)
        for guest in self.bed.guests.values():
            guest.write(SETTINGS, text)
            guest.write(f"{STATE}/fleet.key", FLEET_KEY + "\n", 0o600)
            guest.write(f"{STATE}/api-keys", "test:sk-test-" + "a" * 32 + "\n", 0o600)
            command = " ".join(ENVIRONMENT) + f" python3 -m dsv41_supervisor supervisor --settings {SETTINGS}"
            guest.run(
                "sh", "-c", f"ulimit -l unlimited; setsid {command} --node {guest.name} "
                "< /dev/null > /var/log/supervisor.log 2>&1 &",
            )  # fmt: skip
        for guest in self.bed.guests.values():
            port = self.settings.fleet.nodes[guest.name].supervisor_port
            address = self.settings.fleet.nodes[guest.name].management_address
            probe = f"import socket; socket.create_connection(('{address}', {port}), 5)"
            self.until(
                lambda guest=guest, probe=probe: guest.run("python3", "-Ic", probe, check=False).returncode == 0,
                f"the supervisor of {guest.name}", guest,
            )  # fmt: skip

    def until(self, holds: Callable[[], bool], what: str, *guests: Guest, timeout_s: float = ANSWER_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                said = "\n".join(
                    g.run("tail", "-n", "40", "/var/log/supervisor.log", check=False).stdout for g in guests
                )
                raise AssertionError(f"not seen within {timeout_s:g} s: {what}\n{said}")
            time.sleep(0.2)

    def visit(self, *options: str) -> Visit:
        """`dsv41 doctor` on the head."""
        argv = (
            *ENVIRONMENT, "python3", "-m", "dsv41_supervisor", "doctor", "--settings", SETTINGS, "--json",
            "--timeout", str(READ_S), *options,
        )  # fmt: skip
        done = self.guest("spark1").run(*argv, check=False, timeout_s=2 * ANSWER_S)
        assert done.stdout.startswith("{"), (done.returncode, done.stdout, done.stderr)
        return Visit(done.returncode, json.loads(done.stdout))

    def inside(self, node: str, program: str, *arguments: str, timeout_s: float = 2 * ANSWER_S) -> str:
        """What a few lines of Python print that use the supervisor's package on a node."""
        return self.guest(node).run(*ENVIRONMENT, "python3", "-c", program, *arguments, timeout_s=timeout_s).stdout

    def rail(self, node: str, rail: str) -> str:
        return self.settings.fleet.nodes[node].rails[rail].interface

    def whole(self, node: str) -> bool:
        """Whether every rail of a node has an active port, its GID, and a peer that answers."""
        lines = []
        for name, rail in self.settings.fleet.nodes[node].rails.items():
            assert rail.peer is not None
            port = f"/sys/class/infiniband/{rail.rdma_device}/ports/1"
            gid = "0000:0000:0000:0000:0000:ffff:" + rail.address.ip.packed.hex(":", 2)
            peer = self.settings.fleet.nodes[rail.peer].rails[name].address.ip
            lines += [f"grep -q ACTIVE {port}/state", f"cat {port}/gids/* | grep -qx {gid}",
                      f"ping -qc1 -W2 -I {rail.interface} {peer}"]  # fmt: skip
        return self.guest(node).run("sh", "-ec", "\n".join(lines), check=False).returncode == 0

    def wait_until_whole(self) -> None:
        for node in self.settings.fleet.nodes:
            self.until(lambda node=node: self.whole(node), f"the rails of {node} whole")

    def sent_packets(self, node: str, rail: str) -> int:
        """RoCE packets that the kernel counted out of a rail's RDMA device."""
        counter = f"/sys/class/infiniband/{rdma_device(self.rail(node, rail))}/ports/1/hw_counters/sent_pkts"
        return int(self.guest(node).run("cat", counter).stdout)

    def port_state(self, node: str, rail: str) -> str:
        device = rdma_device(self.rail(node, rail))
        return self.guest(node).run("cat", f"/sys/class/infiniband/{device}/ports/1/state", check=False).stdout

    @contextlib.contextmanager
    def changed(self, node: str, command: str, back: str) -> Iterator[None]:
        """Run a shell command on a node, and `back` afterwards."""
        guest = self.guest(node)
        guest.run("sh", "-ec", command)
        try:
            yield
        finally:
            guest.run("sh", "-ec", back)
