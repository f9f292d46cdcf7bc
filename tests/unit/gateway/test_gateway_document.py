"""supervisor/GATEWAY.md: every command in it is run with the real curl, and prints what the page says."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from dsv41_supervisor.gateway.routes import ROUTES

PAGE = (Path(__file__).parents[3] / "supervisor" / "GATEWAY.md").read_text()
KEY = "a-key-for-the-tests-0123456789"
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", "".join(BLOCKS), re.MULTILINE)


def test_the_page_names_every_route_that_reaches_the_engine() -> None:
    assert all(f"`{route.path}`" in PAGE for route in ROUTES)


def test_the_page_names_the_versions_of_the_clients_that_are_run() -> None:
    pins = (Path(__file__).parents[2] / "clients" / "requirements.in").read_text()
    clients = re.findall(r"^(\S+)==(\S+)$", pins, re.MULTILINE)
    assert len(clients) >= 4
    for name, version in clients:
        told = re.findall(rf"^\| `?{re.escape(name)}`? ([\d.]+)", PAGE, re.MULTILINE)
        assert told and set(told) == {version}, f"run {name}'s tests, then change the version in the client matrix"


def test_the_page_has_the_ten_most_likely_mistakes_at_least() -> None:
    assert len(COMMANDS) >= 10


@pytest.mark.asyncio
@pytest.mark.parametrize(("command", "printed"), COMMANDS, ids=[str(i) for i in range(1, len(COMMANDS) + 1)])
async def test_curl_prints_what_the_page_says(start: Any, command: str, printed: str) -> None:
    fleet = await start()

    async def refuses(_: web.Request, __: dict[str, Any]) -> web.Response:
        """What SGLang 0.5.23 says to a prompt that is too long."""
        message = "The input (300012 tokens) is longer than the model's context length (262144 tokens)."
        said = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
        return web.json_response(said, status=400)

    fleet.engine.behave = refuses
    if "# while a rank is missing" in command:
        fleet.supervisor.lose_rank()
        await fleet.until_ready(False)
    environment = {"PATH": os.environ["PATH"], "URL": fleet.url, "KEY": f"Authorization: Bearer {KEY}"}
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert out.decode() == printed
