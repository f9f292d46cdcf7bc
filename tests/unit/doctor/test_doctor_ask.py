"""Asking a fleet: an answer is taken only from the node that was asked.

Fake: the supervisor of one node, which answers with a document and nothing else.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from aiohttp import web
from dsv41_supervisor.doctor.ask import ask_fleet
from dsv41_supervisor.settings import parse

from tests.unit.doctor.hosts import host
from tests.unit.fleets import good


async def test_a_supervisor_that_is_another_node_is_named_and_its_facts_are_not_taken(tmp_path: Path) -> None:
    async def clock(request: web.Request) -> web.Response:
        return web.json_response({"clock_s": time.time()})

    async def facts(request: web.Request) -> web.Response:
        return web.json_response({"host": host("spark3").model_dump(mode="json"), "fabric": {"node": "spark3"}})

    app = web.Application()
    app.router.add_get("/doctor/clock", clock)
    app.router.add_get("/doctor/facts", facts)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        document = good()
        for number, node in enumerate(document["fleet"]["nodes"].values(), 1):
            # spark2's address leads to that supervisor; at the others' nobody listens.
            node["management_address"] = "127.0.0.1" if number == 2 else f"127.0.99.{number}"
            node["supervisor_port"] = port if number == 2 else 9
        key = tmp_path / "key"
        key.write_text("k" * 64)
        key.chmod(0o600)
        document["fleet"]["key_file"] = str(key)
        asked = await ask_fleet(parse(json.dumps(document)), None, 30)
    finally:
        await runner.cleanup()
    answer = asked.answers["spark2"]
    assert answer.problem == f"the supervisor at http://127.0.0.1:{port} says that it is spark3."
    assert answer.do_next is not None and "fleet.nodes.spark2.management_address" in answer.do_next
    assert (asked.host, asked.fabric) == ({}, {})
