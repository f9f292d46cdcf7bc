"""Fault: clients that hold connections: 150 that send a byte a second, and some that never read their answer.

What the user sees: nothing; the fleet serves on, and `dsv41 status` answers at once.
What the operator sees: nothing. Each is closed 10 s after it connected without a whole request, 30 s after an answer
that it does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from dsv41_supervisor.api.door import HEAD_S

from tests.harness.faults import Fault
from tests.harness.fleet import FleetUnderTest, running_fleet

N_CLIENTS = 150


async def test_slow_clients_are_closed_and_others_are_answered_meanwhile(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False) as fleet:
        before = await fleet.up()
        assert before["state"] == "serving", before["refusals"]
        fault = Fault(f"{N_CLIENTS} clients that send a byte a second", sees="nothing", journal="none")
        clients = [asyncio.ensure_future(_trickle(fleet)) for _ in range(N_CLIENTS)]
        try:
            while not all(client.done() for client in clients):
                status = await fleet.status()
                assert (status["state"], status["boot"]) == ("serving", before["boot"])
                await asyncio.sleep(0.5)
        finally:
            for client in clients:
                client.cancel()
        fault.mark("noticed")
        lasted = [client.result() for client in clients]
        # Closed by the supervisor and not by us, and not before their time.
        assert all(seconds is not None for seconds in lasted), lasted
        assert min(lasted) >= HEAD_S, min(lasted)  # type: ignore[type-var]
        fault.report()


async def _trickle(fleet: FleetUnderTest) -> float | None:
    """Seconds until the supervisor closed; None when it never did."""
    here = fleet.settings.fleet.nodes["spark1"]
    loop = asyncio.get_running_loop()
    # Before it connects: a busy test process hears of the connection later than the supervisor.
    began = loop.time()
    reader, writer = await asyncio.open_connection(str(here.management_address), here.supervisor_port)
    ended = asyncio.ensure_future(reader.read())
    try:
        for byte in b"GET /status HTTP/1.1\r\nX-Slow: " + b"a" * 60:
            with contextlib.suppress(ConnectionError):
                writer.write(bytes([byte]))
            done, _ = await asyncio.wait({ended}, timeout=1)
            if done:
                with contextlib.suppress(ConnectionError):
                    ended.result()
                return loop.time() - began
        return None
    finally:
        ended.cancel()
        writer.transport.abort()
