"""A fleet for tests: real supervisors and gateway on real sockets, with the scripted engine unless told otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsv41_adapters.report import read_reports
from dsv41_supervisor.atomic import write_json
from dsv41_supervisor.demo.fleet import Daemon, DemoFleet
from dsv41_supervisor.demo.fleet_settings import choose_ports, demo_settings, ensure_keys
from dsv41_supervisor.demo.network import Mode, Network, mode
from dsv41_supervisor.errors import PeerUnreachable
from dsv41_supervisor.fleet.peers import SupervisorClient
from dsv41_supervisor.journal import Event
from dsv41_supervisor.rank.plan import report_dir
from dsv41_supervisor.settings import EngineKind, parse
from dsv41_supervisor.smoke import Answer, ask, first_key
from dsv41_supervisor.units.procfs import processes, read

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class FleetUnderTest:
    """One running fleet and what tests do to it."""

    demo: DemoFleet
    head: SupervisorClient
    script_path: Path
    seen: list[tuple[float, str]] = field(default_factory=list)

    @property
    def settings(self):  # type: ignore[no-untyped-def]
        return self.demo.settings

    async def up(self, timeout_s: float = 120) -> dict[str, Any]:
        await self.head.call("POST", "/fleet/up", {"by": "a test"})
        return await self.until(lambda s: s["state"] in ("serving", "failed"), "up", timeout_s)

    async def status(self) -> dict[str, Any]:
        """As the head says it; once more while a node that it hears was too busy to be measured."""
        deadline = time.monotonic() + 10
        while True:
            status = await self.head.call("GET", "/status", timeout_s=15)
            unmeasured = [n for n in status["nodes"].values() if "rank" in n and not n.get("measured")]
            if not unmeasured or time.monotonic() > deadline:
                return status
            await asyncio.sleep(0.1)

    async def until(
        self, condition: Callable[[dict[str, Any]], bool], what: str, timeout_s: float = 60
    ) -> dict[str, Any]:
        """The first status for which `condition` holds; fails with the last one seen."""
        deadline = time.monotonic() + timeout_s
        while True:
            status = await self.status()
            line = f"{status['state']} {status['readiness']['detail']}"
            if not self.seen or self.seen[-1][1] != line:
                self.seen.append((time.monotonic(), line))
            if condition(status):
                return status
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"not seen after {timeout_s} s: {what}. Last: {line}; refusals {status['refusals']}; "
                    + "\n".join(f"{at:.2f} {text}" for at, text in self.seen[-20:])
                )
            await asyncio.sleep(0.05)

    async def until_answering(
        self, condition: Callable[[dict[str, Any]], bool], what: str, timeout_s: float = 60
    ) -> dict[str, Any]:
        """As `until`, while the head's supervisor may not answer yet."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return await self.until(condition, what, max(0.1, deadline - time.monotonic()))
            except PeerUnreachable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    def script(self, behaviour: dict[str, Any]) -> None:
        """What the scripted engine does from now on."""
        write_json(self.script_path, behaviour)

    def rank_process(self, rank: int) -> int:
        """Pid of `dsv41 rank N`."""
        wanted = ["rank", str(rank), "--settings", str(self.demo.settings_path)]
        for pid in processes():
            argv = _argv(pid)
            if argv[2:3] == ["dsv41_supervisor"] and argv[3:7] == wanted:
                return pid
        raise AssertionError(f"there is no process of rank {rank}")

    def engine_process(self, rank: int, role: str) -> int:
        """Pid of one process of a rank's engine: the launcher, or by the role it reported in this boot."""
        if role == "launcher":
            main = self.rank_process(rank)
            return min(p.pid for p in processes().values() if p.parent == main)
        if self.settings.engine.kind is EngineKind.SCRIPTED:
            # By its name, which it has from its start; it reports when it is ready.
            launcher = self.engine_process(rank, "launcher")
            children = [p.pid for p in processes().values() if p.parent == launcher]
            found = [pid for pid in children if f"sglang::{role}"[:15] == _name(pid)]
            assert len(found) == 1, (rank, role, found)
            return found[0]
        document = report_dir(self.settings, self.settings.fleet.by_rank(rank)) / "plan.json"
        boot = json.loads(document.read_text())["boot"]
        found = [r.pid for r in read_reports(document.parent, boot) if r.role == role]
        assert len(found) == 1, (rank, role, found)
        return found[0]

    def supervisor(self, node: str) -> Daemon:
        """The supervisor's process of a node."""
        return next(d for d in self.demo.daemons if d.node == node and d.name == "supervisor")

    async def kill_supervisor(self, node: str) -> None:
        """SIGKILL, and see it gone. Its ranks live on."""
        daemon = self.supervisor(node)
        kill(daemon.process.pid)
        await daemon.process.wait()
        self.demo.daemons.remove(daemon)

    async def stop_supervisor(self, node: str) -> None:
        """SIGTERM, and see it gone, with the child processes that are its units."""
        daemon = self.supervisor(node)
        kill(daemon.process.pid, signal.SIGTERM)
        await asyncio.wait_for(daemon.process.wait(), 60)
        self.demo.daemons.remove(daemon)

    async def start_supervisor(self, node: str) -> None:
        """As an init system does; what the one before it logged is kept."""
        log = self.demo.state_root / node / "supervisor.log"
        before = self.demo.state_root / node / "supervisor-before.log"
        with before.open("ab") as file:
            file.write(log.read_bytes())
        await self.demo.start_daemon("supervisor", node)

    async def heard(self, node: str) -> None:
        """Wait until the head knows a node's status: one whose supervisor has just been started may be silent still,
        for longer than a boot that begins now would wait for it."""
        await self.until(lambda s: "rank" in s["nodes"][node], f"the head hears {node}")

    def log(self, node: str) -> str:
        """Everything the node's supervisors have logged."""
        directory = self.demo.state_root / node
        paths = [directory / "supervisor-before.log", directory / "supervisor.log"]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    async def said(self, node: str, sentence: str, event: Event | None = None, timeout_s: float = 60) -> str:
        """The line in which a node's supervisor says `sentence` (a regular expression), as the declared event."""
        suffix = rf".*\[{event.name}\]$" if event is not None else ""
        pattern = re.compile(rf"^.*(?:{sentence}){suffix}", re.M)
        deadline = time.monotonic() + timeout_s
        while True:
            found = pattern.search(self.log(node))
            if found is not None:
                return found[0]
            if time.monotonic() > deadline:
                raise AssertionError(f"{node} did not say {pattern.pattern!r}; its log ends:\n{self.log(node)[-4000:]}")
            await asyncio.sleep(0.05)

    async def dsv41(self, *arguments: str, timeout_s: float = 90) -> tuple[int, str]:
        """Run the command as a person does: exit status, and both outputs together."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dsv41_supervisor", *arguments, "--settings", str(self.demo.settings_path),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        text, _ = await asyncio.wait_for(process.communicate(), timeout_s)
        return process.returncode or 0, text.decode()

    async def node_status(self, node: str) -> dict[str, Any]:
        """One node's status by its own supervisor, whatever the head thinks; with what it measures."""
        async with SupervisorClient(self.settings, node) as client:
            status = (await client.call("GET", "/status", timeout_s=15))["nodes"][node]
            return status | {"measured": await client.call("GET", "/node/measure", timeout_s=15)}

    async def until_node(
        self, node: str, condition: Callable[[dict[str, Any]], bool], what: str, timeout_s: float = 60
    ) -> dict[str, Any]:
        """As `until`, asked of one node."""
        deadline = time.monotonic() + timeout_s
        last: object = None
        while time.monotonic() < deadline:
            try:
                status = await self.node_status(node)
                if condition(status):
                    return status
                last = status["rank"], status["measured"]
            except PeerUnreachable as error:
                last = error
            await asyncio.sleep(0.05)
        raise AssertionError(f"not seen on {node} after {timeout_s} s: {what}. Last: {last}")

    def audit(self) -> str:
        """The head's audit log."""
        return (self.settings.state_dir(self.settings.fleet.head) / "audit.log").read_text()

    async def chat(self, max_tokens: int = 8, show: Callable[[str], None] = lambda text: None) -> Answer:
        key = first_key(Path(self.settings.gateway.keys_file))
        return await ask(self.demo.endpoint, key, self.settings.engine.served_model_name, "hello", max_tokens, show)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


async def gone(pid: int, timeout_s: float = 60) -> None:
    """Wait until a process does not run any more."""
    deadline = time.monotonic() + timeout_s
    while (found := read(pid)) is not None and not found.dead:
        assert time.monotonic() < deadline, f"process {pid} still runs after {timeout_s} s"
        await asyncio.sleep(0.05)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _argv(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


@contextlib.asynccontextmanager
async def running_fleet(
    tmp_path: Path,
    checkpoint: Path,
    *,
    nodes: int = 3,
    loopback: bool = False,
    engine: EngineKind = EngineKind.SCRIPTED,
    engine_python: Path | None = None,
    change: Callable[[dict[str, Any]], None] | None = None,
    behaviour: dict[str, Any] | None = None,
    gateway: bool = True,
) -> AsyncIterator[FleetUnderTest]:
    """Supervisors (and gateway) up, fleet down. At the end nothing may be left, or the test fails."""
    probe = mode()
    network = Network(nodes, probe._replace(mode=Mode.LOOPBACK) if loopback else probe)
    await asyncio.to_thread(network.open)
    state = tmp_path / "fleet"
    script_path = tmp_path / "script.json"
    write_json(script_path, behaviour or {})
    revision = json.loads((checkpoint / "dsv41-checkpoint.json").read_text())["revision"]
    demo: DemoFleet | None = None
    try:
        ensure_keys(state)
        raw = demo_settings(
            network, state_root=state, tp=nodes, nodes=nodes, engine=engine,
            engine_python=engine_python or Path(sys.executable), demo_dir=ROOT / "demo", checkpoint_dir=checkpoint,
            revision=revision, ports=choose_ports(network),
            script=script_path if engine is EngineKind.SCRIPTED else None,
        )  # fmt: skip
        if change is not None:
            change(raw)
        settings = parse(json.dumps(raw))
        settings_path = state / "settings.json"
        write_json(settings_path, raw)
        demo = DemoFleet(settings, settings_path, network, state)
        await demo.start_supervisors()
        if gateway:
            await demo.start_gateway()
        async with SupervisorClient(settings, settings.fleet.head) as head:
            yield FleetUnderTest(demo, head, script_path)
    finally:
        if demo is not None:
            await demo.stop()
        left = await asyncio.to_thread(network.close)
        assert left == [], f"left behind: {left}"
        assert network.killed == [], f"had to be killed at the end: {network.killed}"
