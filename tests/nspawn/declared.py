"""Declared nodes on machines with a real systemd: the rendered units of tests/eval/golden, and a fleet of them.

The units are the golden files, which tests/eval compares with what the modules render, except for two store paths: the
program is the checkout's, the settings are a loopback fleet with the scripted engine. The three machines share one
network, each with an address of its own.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dsv41_supervisor.demo.fleet_settings import Ports, demo_settings
from dsv41_supervisor.demo.network import Mode, Network, mode
from dsv41_supervisor.journal import Event
from dsv41_supervisor.settings import EngineKind
from machine import OPT, ROOT, SHARED, Machine

GOLDEN = ROOT / "tests/eval/golden"
SETTINGS = "/etc/dsv41/settings.json"
BOOT_S = 140
CHECKPOINT = "/srv/models/DeepSeek-V4.1-Flash"
USERS = "u dsv41 -\nu dsv41-supervisor -\nu dsv41-gateway -\n"
FLEET_KEY = "f" * 64
API_KEY = "sk-test-" + "a" * 32


def fleet_settings(n_nodes: int, revision: str) -> dict[str, Any]:
    """A loopback fleet of the scripted engine, with the paths that a declared machine has."""
    network = Network(n_nodes, mode()._replace(mode=Mode.LOOPBACK))
    network.open()
    try:
        raw = demo_settings(
            network, state_root=Path("/var/lib/dsv41"), tp=n_nodes, nodes=n_nodes, engine=EngineKind.SCRIPTED,
            engine_python=Path(f"{OPT}/venv/bin/python"), demo_dir=Path(f"{OPT}/src/demo"),
            checkpoint_dir=Path(CHECKPOINT), revision=revision, ports=Ports(), script=Path("/srv/script.json"),
        )  # fmt: skip
    finally:
        network.close()
    raw["fleet"]["key_file"] = "/etc/dsv41/fleet-key"
    raw["gateway"]["keys_file"] = "/etc/dsv41/api-keys"
    raw["pack"]["directory"] = "/var/lib/dsv41/rows"
    # Everything else of the supervisor is the default: systemd, /var/lib/dsv41/supervisor, /run/dsv41.
    # A supervisor that is started anew on a loaded machine may take longer to answer than the default allows.
    raw["supervisor"] = {"peer_timeout_s": 15}
    raw["recovery"] |= {"backoff_s": 0.5}
    return raw


def rendered(node: str) -> dict[str, str]:
    """Files of one node by name."""
    # The check before a switch is no file of the machine; it has a test of its own.
    files = (path for path in (GOLDEN / f"triangle-3-{node}").iterdir() if path.name != "pre-switch-check")
    return {path.name: on_this_machine(path.read_text()) for path in files}


def on_this_machine(text: str) -> str:
    text = re.sub(r"/nix/store/\S+-dsv41-supervisor-[\d.]+/bin/dsv41", f"{OPT}/venv/bin/dsv41", text)
    text = re.sub(r"/nix/store/\S+-dsv41-settings.json", SETTINGS, text)
    text = re.sub(r"/nix/store/\S+-dsv41.catalog", f"{OPT}/src/modules/dsv41.catalog", text)
    assert "/nix/store" not in text, text
    return text


@dataclass
class Node:
    """One declared node on its machine."""

    name: str
    rank: int
    machine: Machine

    @property
    def unit(self) -> str:
        return f"dsv41-rank@{self.rank}"

    def install(self, settings: dict[str, Any], checkpoint: Path) -> None:
        """What `nixos-rebuild switch` and its owner would have put there."""
        machine = self.machine
        files = rendered(self.name)
        for name, text in files.items():
            if name.endswith(".service"):
                (machine.units / name).write_text(text)
        machine.write("/etc/sysusers.d/dsv41.conf", USERS)
        machine.run("systemd-sysusers")
        machine.write("/etc/dsv41/fleet-key", FLEET_KEY + "\n", 0o600)
        machine.write("/etc/dsv41/api-keys", f"test:{API_KEY}\n", 0o600)
        machine.write(SETTINGS, json.dumps(settings))
        machine.write("/etc/polkit-1/rules.d/50-dsv41.rules", files["polkit.rules"])
        machine.write("/etc/tmpfiles.d/dsv41.conf", files["tmpfiles.conf"])
        self.script({})
        machine.run("mkdir", "-p", str(Path(CHECKPOINT).parent))
        copy = machine.shared / "checkpoint"
        if not copy.exists():
            shutil.copytree(checkpoint, copy)
            machine.shared.chmod(0o755)
        machine.run("ln", "-sfn", f"{SHARED}/checkpoint", CHECKPOINT)
        machine.run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/dsv41.conf")
        machine.run("systemctl", "daemon-reload")

    def script(self, behaviour: dict[str, Any]) -> None:
        self.machine.write("/srv/script.json", json.dumps(behaviour))

    def main_pid(self, unit: str | None = None) -> str:
        return self.machine.show(unit or self.unit, "MainPID")["MainPID"]

    def invocation(self, unit: str | None = None) -> str:
        return self.machine.show(unit or self.unit, "InvocationID")["InvocationID"]

    def is_active(self, unit: str | None = None) -> bool:
        return self.machine.show(unit or self.unit, "ActiveState")["ActiveState"] == "active"

    @contextlib.contextmanager
    def changed(self, unit: str, line: str) -> Iterator[None]:
        """The unit with another line in its section [Service], as systemd reads it meanwhile."""
        directory = f"/run/systemd/system/{unit}.service.d"
        self.machine.write(f"{directory}/changed.conf", f"[Service]\n{line}\n")
        self.machine.run("systemctl", "daemon-reload")
        try:
            yield
        finally:
            self.machine.run("rm", "-r", directory)
            self.machine.run("systemctl", "daemon-reload")

    def status(self) -> dict[str, Any]:
        """What `dsv41 status --json` says here; empty while nobody answers."""
        done = self.machine.dsv41("status", "--json", "--settings", SETTINGS, check=False)
        try:
            return json.loads(done.stdout)
        except ValueError:
            return {}


class Named(Protocol):
    """A machine with the name of its node."""

    name: str
    machine: Machine


def wait_for(condition: Callable[[], object], what: str, timeout_s: float, *nodes: Named) -> None:
    """Wait until it holds; fails with the last lines of the nodes' journals."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            said = "\n".join(f"--- {n.name}\n{n.machine.journal('--lines=40')}" for n in nodes)
            raise AssertionError(f"not seen within {timeout_s} s: {what}\n{said}")
        time.sleep(0.1)


def assert_nothing_is_left(nodes: list[Node]) -> None:
    nodes[0].machine.run("systemctl", "stop", "dsv41-rank@0")
    wait_for(lambda: not any(n.is_active() for n in nodes), "every rank to be gone", 60, *nodes)


def serving(nodes: list[Node]) -> None:
    """Bring the fleet up as an operator does; one that runs may be being taken over by a restarted supervisor."""
    nodes[0].machine.run("systemctl", "start", "dsv41-rank@0", timeout_s=BOOT_S)
    wait_for(lambda: nodes[0].status().get("state") == "serving", "the fleet to serve", 60, *nodes)


def said_by(nodes: list[Node]) -> str:
    return "\n".join(f"--- {n.name}\n{n.machine.journal('--lines=60', '--unit=dsv41-*')}" for n in nodes)


def told(node: Node, kind: Event) -> str:
    return node.machine.journal(f"MESSAGE_ID={kind.value}")
