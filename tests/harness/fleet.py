"""A fleet for tests: real supervisors and gateway on real sockets, with the scripted engine unless told otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsv41_adapters.report import read_reports
from dsv41_supervisor.atomic import write_json
from dsv41_supervisor.demo.fleet import DemoFleet
from dsv41_supervisor.demo.fleet_settings import choose_ports, demo_settings, ensure_keys
from dsv41_supervisor.demo.network import Mode, Network, mode
from dsv41_supervisor.errors import PeerUnreachable
from dsv41_supervisor.fleet.peers import SupervisorClient
from dsv41_supervisor.rank.plan import report_dir
from dsv41_supervisor.settings import EngineKind, parse
from dsv41_supervisor.smoke import Answer, ask, first_key
from dsv41_supervisor.units.procfs import processes

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

    async def up(self, timeout_s: float = 60) -> dict[str, Any]:
        await self.head.call("POST", "/fleet/up", {"by": "a test"})
        return await self.until(lambda s: s["state"] in ("serving", "failed"), "up", timeout_s)

    async def status(self) -> dict[str, Any]:
        return await self.head.call("GET", "/status", timeout_s=15)

    async def until(
        self, condition: Callable[[dict[str, Any]], bool], what: str, timeout_s: float = 30
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
        self, condition: Callable[[dict[str, Any]], bool], what: str, timeout_s: float = 30
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
        document = report_dir(self.settings, self.settings.fleet.by_rank(rank)) / "plan.json"
        boot = json.loads(document.read_text())["boot"]
        found = [r.pid for r in read_reports(document.parent, boot) if r.role == role]
        assert len(found) == 1, (rank, role, found)
        return found[0]

    async def chat(self, max_tokens: int = 8, show: Callable[[str], None] = lambda text: None) -> Answer:
        key = first_key(Path(self.settings.gateway.keys_file))
        return await ask(self.demo.endpoint, key, self.settings.engine.served_model_name, "hello", max_tokens, show)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


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
