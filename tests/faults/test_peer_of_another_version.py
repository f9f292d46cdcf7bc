"""Fault: what answers at a worker's address is a supervisor of another version, or no supervisor at all.

What the user sees: `dsv41 up` names the node, both versions, and what to do; 78. The head's supervisor lives.
What the operator sees: `spark2 … speaks another version` or `did not answer as a dsv41 supervisor does`
(MESSAGE_ID PEER_REFUSED), once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web
from dsv41_supervisor import __version__
from dsv41_supervisor.journal import Event

from tests.harness.faults import Fault
from tests.harness.fleet import FleetUnderTest, running_fleet


@contextlib.asynccontextmanager
async def _in_place_of(fleet: FleetUnderTest, node: str, answer: Any) -> AsyncIterator[None]:
    """Something else listens where the node's supervisor did."""
    if any(d.node == node and d.name == "supervisor" for d in fleet.demo.daemons):
        await fleet.kill_supervisor(node)

    async def handle(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return answer(request)

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    here = fleet.settings.fleet.nodes[node]
    site = web.TCPSite(runner, str(here.management_address), here.supervisor_port, reuse_address=True)
    await site.start()
    try:
        yield
    finally:
        await runner.cleanup()


async def test_answers_of_another_version_are_named_and_end_nothing(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False) as fleet:
        real = await fleet.node_status("spark2")
        other = json.loads(json.dumps(real))
        other["supervisor"]["version"] = other["same"]["supervisor version"] = "9.9.9"
        slim = {"version": 5, "supervisor": {"version": "0.0.1"}}
        versions = f"9\\.9\\.9.*{__version__}|{__version__}.*9\\.9\\.9"
        cases: list[tuple[str, Any, str]] = [
            ("a newer supervisor, same shapes", lambda r: web.json_response(_says(r, other)), versions),
            ("an older supervisor, other shapes", lambda r: web.json_response(slim), r"0\.0\.1"),
            ("shapes with wrong types", lambda r: web.json_response(real | {"rank": 7, "prepare": []}), "version"),
            ("an API without our routes", lambda r: web.json_response({"error": "?"}, status=404), "404"),
            ("something that is no supervisor", lambda r: web.Response(text="<html>"), "did not answer as"),
            ("an array", lambda r: web.json_response([1]), "did not answer as a dsv41 supervisor does"),
        ]
        for words, answer, expected in cases:
            fault = Fault(
                f"a peer of another version: {words}",
                sees="`up` names the node; the head lives",
                journal="spark2: … (PEER_REFUSED)",
            )
            async with _in_place_of(fleet, "spark2", answer):
                # What the node's own supervisor said before is not what is judged.
                await fleet.until(
                    lambda s, expected=expected: re.search(expected, _known(s["nodes"]["spark2"]), re.S) is not None,
                    f"the head has heard {words}",
                )
                code, text = await fleet.dsv41("up")
                fault.mark("noticed")
                assert code in (69, 78), (words, text)
                assert re.search(expected, text, re.S), (words, text)
                assert "spark2" in text, (words, text)
                assert "a bug" not in text, (words, text)
                status = await fleet.status()
                assert status["state"] == "failed", words
                for node in ("spark1", "spark3"):
                    assert status["nodes"][node]["measured"]["n_processes"] == 0, words
            assert "Traceback" not in fleet.log("spark1"), (words, fleet.log("spark1"))
            fault.report()
        await fleet.said("spark1", "spark2", Event.PEER_REFUSED)
        await fleet.start_supervisor("spark2")
        await fleet.heard("spark2")
        assert (await fleet.up())["state"] == "serving"


def _known(node: dict[str, Any]) -> str:
    """What the head shows of a node: why it is of no use, or both versions."""
    return str(node.get("trouble") or f"{node.get('supervisor', {}).get('version')} and not {__version__}")


def _says(request: web.Request, status: dict[str, Any]) -> dict[str, Any]:
    """The status under watch; what an order answers is empty."""
    return status if request.method == "GET" else {}
