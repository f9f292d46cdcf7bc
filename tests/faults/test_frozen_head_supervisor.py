"""Fault: SIGSTOP of the head's supervisor: nobody renews the lease.

What the user sees: every command says within seconds that the head does not answer, and no order is kept for later;
after the lease's time the workers' ranks have stopped by themselves; nobody serves half a fleet.
What the operator sees: `the lease of boot … ran out; stopping` (MESSAGE_ID LEASE_EXPIRED) on the workers.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

from dsv41_supervisor.fleet.peers import SupervisorClient

from tests.harness.faults import Fault
from tests.harness.fleet import kill, running_fleet

TTL_S = 3


async def test_ranks_without_a_live_lease_stop_themselves(tmp_path: Path, demo_checkpoint: Path) -> None:
    def short(raw: dict[str, Any]) -> None:
        raw["supervisor"]["lease_ttl_s"] = TTL_S
        raw["recovery"]["backoff_s"] = 0

    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False, change=short) as fleet:
        assert (await fleet.up())["state"] == "serving"
        head = next(d for d in fleet.demo.daemons if d.node == "spark1")
        fault = Fault(
            "SIGSTOP of the head's supervisor",
            sees="the workers' ranks end with their lease; serves again once it moves",
            journal="the lease of boot … ran out; stopping (LEASE_EXPIRED)",
        )
        kill(head.process.pid, signal.SIGSTOP)
        try:
            for command in (["status"], ["status", "--decisions"], ["down"], ["pause"]):
                code, text = await fleet.dsv41(*command)
                assert code == 69 and "did not say within 4 s that it lives" in text, text
                # It was not even asked: nothing of it is done when the head moves again.
                assert "may still be carried out" not in text
            for node in ("spark2", "spark3"):
                await _wait_for_stopped(fleet.settings, node)
            fault.mark("stopped")
        finally:
            kill(head.process.pid, signal.SIGCONT)
        await fleet.until(lambda s: s["state"] == "serving", "the fleet came back when the head did", 90)
        fault.mark("serving")
        fault.report()


async def _wait_for_stopped(settings, node: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + TTL_S + 60
    async with SupervisorClient(settings, node) as worker:
        while True:
            status = (await worker.call("GET", "/status"))["nodes"][node]
            measured = await worker.call("GET", "/node/measure")
            if status["rank"]["state"] == "failed" and measured["n_processes"] == 0:
                assert status["rank"]["reason"] == "the head has not renewed the lease"
                return
            assert time.monotonic() < deadline, status["rank"]
            await asyncio.sleep(0.1)


async def test_a_head_that_stood_still_within_the_lease_blames_nobody(tmp_path: Path, demo_checkpoint: Path) -> None:
    """Its questions to the workers run out of time while it is frozen: it asks again before it calls them silent."""

    def long(raw: dict[str, Any]) -> None:
        raw["supervisor"] |= {"lease_ttl_s": 40, "peer_timeout_s": 2}

    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False, change=long) as fleet:
        boot = (await fleet.up())["boot"]["id"]
        head = next(d for d in fleet.demo.daemons if d.node == "spark1")
        fault = Fault("SIGSTOP of the head's supervisor for 7 s", sees="nothing: it serves on", journal="none")
        kill(head.process.pid, signal.SIGSTOP)
        await asyncio.sleep(7)
        kill(head.process.pid, signal.SIGCONT)
        fault.mark("moves again")
        # The first question after the freeze, and the one that follows it, are over by then.
        for _ in range(8):
            await asyncio.sleep(0.5)
            status = await fleet.status()
            now = (status["state"], (status["boot"] or {}).get("id"))
            assert now == ("serving", boot), (status["reason"], fleet.seen)
        assert status["recoveries"] == 0
        fault.report()
