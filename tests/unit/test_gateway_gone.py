"""A gateway that is gone is named by `dsv41 status` and `dsv41 smoke`, with where to look; real sockets, no fleet."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from dsv41_supervisor.commands.status import gateway_lines
from dsv41_supervisor.commands.together import together
from dsv41_supervisor.errors import Dsv41Error
from dsv41_supervisor.fleet.controller import FleetController
from dsv41_supervisor.node import NodeAgent
from dsv41_supervisor.settings import Settings, parse
from dsv41_supervisor.smoke import ask
from dsv41_supervisor.units.process import ProcessUnits, UnitDefinition
from dsv41_supervisor.units.words import (
    gateway_log,
    look_at_gateway,
    look_at_guard,
    look_at_supervisor,
    start_supervisor,
)

from tests.unit.fleets import good


def _settings(tmp_path: Path, port: int, units: str = "systemd") -> Settings:
    raw = good()
    raw["fleet"]["nodes"]["spark1"]["management_address"] = "127.0.0.1"
    raw["gateway"] = {"address": "127.0.0.1", "port": port}
    raw["supervisor"] = {
        "units": units, "state_dir": f"{tmp_path}/{{node}}/supervisor", "run_dir": f"{tmp_path}/{{node}}/run",
    }  # fmt: skip
    return parse(json.dumps(raw))


def _no_unit(name: str) -> UnitDefinition:
    raise AssertionError(f"{name} was started")


async def _gateway(settings: Settings, tmp_path: Path) -> dict[str, object]:
    agent = NodeAgent(settings, "spark1", ProcessUnits(_no_unit, tmp_path / "units"))
    head = FleetController(settings, agent, "a-key-of-the-fleet-0123456789abcdef")
    try:
        return (await head.status())["gateway"]  # type: ignore[no-any-return]
    finally:
        await head.close()


async def test_a_dead_gateway_is_in_the_status_and_a_living_one_is_not_mentioned(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"status": "unavailable"}')
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = _settings(tmp_path, port)
    said = await _gateway(settings, tmp_path)
    assert said["trouble"] is None
    assert gateway_lines({"gateway": said}, settings) == []
    server.close()
    await server.wait_closed()
    assert gateway_lines({"gateway": await _gateway(settings, tmp_path)}, settings) == [
        f"the gateway on spark1 at 127.0.0.1:{port} does not answer (Connection refused). "
        "Run systemctl restart dsv41-gateway on spark1; journalctl -u dsv41-gateway says why."
    ]
    # A head from before this says nothing about it.
    assert gateway_lines({}, settings) == []


async def test_smoke_without_a_gateway_says_where_to_look(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings = _settings(tmp_path, port)
    with pytest.raises(Dsv41Error) as caught:
        await ask(f"http://127.0.0.1:{port}", None, "m", "hello", 4, print, look=look_at_gateway(settings))
    assert f"no answer from http://127.0.0.1:{port}" in str(caught.value)
    assert "journalctl -u dsv41-gateway" in str(caught.value)


def test_without_systemd_the_log_is_named_and_no_unit(tmp_path: Path) -> None:
    settings = _settings(tmp_path, 8888, units="process")
    assert look_at_guard(settings, "spark2") == (
        f"The supervisor starts it again by itself; its log on spark2 is {tmp_path}/spark2/run/guard.log."
    )
    guard = {"connected": False, "gpu_no_memory": 0, "hardening": {}, "killers": []}
    said = together({"nodes": {"spark2": {"same": {}, "memory": {"guard": guard}}}}, settings)
    assert f"spark2: the memory guard does not run. {look_at_guard(settings, 'spark2')}" in said
    assert "systemctl" not in look_at_gateway(settings)
    assert look_at_supervisor(settings, "spark2").startswith(f"Look on spark2: {tmp_path}/spark2/supervisor.log")
    assert "systemctl" not in start_supervisor(settings, "spark2")
    gateway_log(settings).parent.mkdir(parents=True)
    gateway_log(settings).write_text("")
    assert f"{tmp_path}/spark1/gateway.log" in look_at_gateway(settings)
