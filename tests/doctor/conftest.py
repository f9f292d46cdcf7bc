"""One fleet of three for all tests here: real supervisors in namespaces, a checkpoint each, rows packed, ranks down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.demo.network import Mode, mode

from tests.harness.fleet import FleetUnderTest, running_fleet

START_S = 90.0
RECORD = "DSV41_RECORD_DOCTOR"
"""Name of a file: every visit's text is appended to it. supervisor/DOCTOR.md was made that way."""


@dataclass
class Visit:
    """What one `dsv41 doctor` said."""

    status: int
    said: dict[str, Any]

    def findings(self, *severities: str) -> list[dict[str, Any]]:
        per_node = [f for node in self.said["nodes"].values() for f in node["findings"]]
        return [f for f in per_node + self.said["findings"] if not severities or f["severity"] in severities]

    @property
    def bad(self) -> set[tuple[str, str | None, str | None]]:
        """Check, node and rail of everything that is not good."""
        return {(f["check"], f["node"], f["rail"]) for f in self.findings("refusal", "warning")}

    def sentence(self, check: str, node: str | None) -> str:
        return " / ".join(
            f"{f['what']} {f['do_next']}" for f in self.findings() if (f["check"], f["node"]) == (check, node)
        )


@dataclass
class Patient:
    """The fleet, what breaks it, and the doctor."""

    fleet: FleetUnderTest
    loop: asyncio.AbstractEventLoop

    def on(self, node: str, *argv: str, check: bool = True) -> str:
        """Run a command on a node."""
        done = subprocess.run(
            self.fleet.demo.network.argv_in(node, list(argv)), capture_output=True, text=True, timeout=60
        )
        if check:
            assert done.returncode == 0, (node, argv, done.stdout, done.stderr)
        return done.stdout

    def start_on(self, node: str, *argv: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.fleet.demo.network.argv_in(node, list(argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def rail(self, node: str, rail: str) -> str:
        """Name of the interface."""
        return self.fleet.settings.fleet.nodes[node].rails[rail].interface

    def address(self, node: str, rail: str) -> str:
        return str(self.fleet.settings.fleet.nodes[node].rails[rail].address)

    def visit(
        self, *options: str, title: str = "", settings: Path | None = None, bound_s: float = 20, timeout_s: float = 240
    ) -> Visit:
        """`dsv41 doctor` as a person runs it, on the machine that the namespaces hang from."""
        path = settings or self.fleet.demo.settings_path
        argv = [sys.executable, "-m", "dsv41_supervisor", "doctor", "--settings", str(path), *options]
        # A machine under load may take longer to read a fact than a person wants to wait.
        argv += ["--timeout", f"{bound_s:g}"]
        done = subprocess.run([*argv, "--json"], capture_output=True, text=True, timeout=timeout_s)
        assert done.stdout.startswith("{"), (done.returncode, done.stdout, done.stderr)
        if title and os.environ.get(RECORD):
            text = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s).stdout.strip()
            root = self.fleet.demo.state_root
            text = text.replace(str(root), "/var/lib/dsv41").replace(str(root.parent), "/srv")
            text = "\n".join(line.rstrip() for line in text.splitlines())
            with Path(os.environ[RECORD]).open("a") as file:
                file.write(f"### {title}\n\n```\n{text}\n```\n\n")
        return Visit(done.returncode, json.loads(done.stdout))


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory, demo_checkpoint: Path) -> Iterator[Patient]:
    probe = mode()
    if probe.mode is not Mode.NAMESPACES:
        pytest.skip(f"needs network namespaces: {probe.reason}")
    if shutil.which("ip") is None:
        pytest.skip("needs ip (package iproute2) to break links with")
    root = tmp_path_factory.mktemp("doctor")
    for node in ("spark1", "spark2", "spark3"):
        shutil.copytree(demo_checkpoint, root / "checkpoints" / node)

    def change(raw: dict[str, Any]) -> None:
        raw["checkpoint"]["path"] = f"{root}/checkpoints/{{node}}"

    with _in_thread(lambda: running_fleet(root, demo_checkpoint, change=change)) as (fleet, loop):
        sick = Patient(fleet, loop)
        for node in fleet.settings.fleet.nodes:
            pack = [sys.executable, "-m", "dsv41_supervisor", "pack", "--settings", str(fleet.demo.settings_path)]
            sick.on(node, *pack, "--node", node)
        yield sick


@contextlib.contextmanager
def _in_thread(make: Callable[[], Any]) -> Iterator[tuple[Any, asyncio.AbstractEventLoop]]:
    """An async context in an event loop of its own, for fixtures that outlive one test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fleet")
    thread.start()
    context = make()
    try:
        value = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(START_S)
        try:
            yield value, loop
        finally:
            asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(START_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
