"""Fault: a foreign process holds a port that is needed.

What the user sees: while it waits, and in the refusal, which port, on which node, and who holds it. Exit 69; nothing
of the foreigner is touched.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

import pytest
from dsv41_supervisor.errors import Dsv41Error, Exit

from tests.harness.fleet import kill, running_fleet


def _hold(address: str, port: int) -> socket.socket:
    foreign = socket.socket()
    foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    foreign.bind((address, port))
    foreign.listen()
    return foreign


async def test_an_engine_port_held_by_another_is_named(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False) as fleet:
        port = fleet.settings.fleet.nodes["spark2"].engine_port
        with _hold("127.0.0.1", port):
            status = await fleet.up()
            assert status["state"] == "failed"
            (refusal,) = status["refusals"]
            assert refusal["node"] == "spark2"
            assert f"port {port} is taken by a process that is not ours: " in refusal["what"]
            assert f"(pid {os.getpid()})" in refusal["what"]
            assert f"kill {os.getpid()}" in refusal["hint"]
            assert refusal["transient"] is True
            exit_status, said = await fleet.dsv41("up")
            assert exit_status == Exit.UNAVAILABLE
            assert f"rank 1 on spark2 waits for port {port}, held by " in said
            assert "--override" not in said
        assert (await fleet.up())["state"] == "serving"


async def test_a_port_taken_while_recovering_ends_in_words_and_not_in_a_restart_beside_it(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False) as fleet:
        assert (await fleet.up())["state"] == "serving"
        port = fleet.settings.fleet.nodes["spark2"].engine_port
        kill(fleet.engine_process(1, "launcher"))
        with await _hold_as_soon_as_free("127.0.0.1", port):
            failed = await fleet.until(lambda s: s["state"] == "failed", "it gave up", 90)
            assert f"port {port} is taken by a process that is not ours" in failed["reason"]
            assert all(node["measured"]["n_processes"] == 0 for node in failed["nodes"].values())
        assert (await fleet.up())["state"] == "serving"


async def test_a_port_taken_while_an_engine_loads_ends_the_boot_and_names_the_holder(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    """SGLang binds when it has loaded; it says that it cannot, and its process goes on for ever."""
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False) as fleet:
        fleet.script({"all": {"phase_s": {"weights": 5}}})
        port = fleet.settings.fleet.nodes["spark1"].engine_port
        starting = asyncio.ensure_future(fleet.up())
        await fleet.until(lambda s: s["nodes"]["spark1"]["rank"]["phase"] == "weights", "it loads", 40)
        with _hold("127.0.0.1", port):
            failed = await starting
            assert failed["state"] == "failed"
            said = str(failed["refusals"]) + failed["reason"]
            assert f"('127.0.0.1', {port}): " in said or f"port {port} is taken by a process that is not ours" in said
            assert all(node["measured"]["n_processes"] == 0 for node in failed["nodes"].values())
            exit_status, said = await fleet.dsv41("up")
            assert exit_status == Exit.UNAVAILABLE
            assert f"port {port}" in said and f"(pid {os.getpid()})" in said
        fleet.script({})
        assert (await fleet.up())["state"] == "serving"


async def _hold_as_soon_as_free(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        try:
            return _hold(address, port)
        except OSError:
            assert time.monotonic() < deadline, f"port {port} was never free"
            await asyncio.sleep(0.001)


async def test_a_supervisor_whose_port_is_taken_says_so_and_ends(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False) as fleet:
        here = fleet.settings.fleet.nodes["spark1"]
        second = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dsv41_supervisor", "supervisor", "--settings", str(fleet.demo.settings_path),
            "--node", "spark1", stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, stderr = await asyncio.wait_for(second.communicate(), 60)
        assert second.returncode == Exit.UNAVAILABLE
        address = f"{here.management_address}:{here.supervisor_port}"
        assert f"spark1, config: cannot listen on {address}: Address already in use." in stderr.decode()
        assert (await fleet.up())["state"] == "serving"


async def test_a_gateway_whose_port_is_taken_is_named_with_its_log(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False) as fleet:
        gateway = fleet.settings.gateway
        with _hold(str(gateway.address), gateway.port), pytest.raises(Dsv41Error) as caught:
            await fleet.demo.start_gateway()
        assert str(gateway.port) in str(caught.value)
        assert caught.value.exit_status is Exit.UNAVAILABLE
        fleet.demo.daemons.pop()
