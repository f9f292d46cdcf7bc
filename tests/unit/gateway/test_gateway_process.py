"""`dsv41 gateway` as a process: how it starts, what it costs, how it stops, what keeps it from starting."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from dsv41_supervisor import gateway
from dsv41_supervisor.doctor.read_gateway import read_gateway
from dsv41_supervisor.errors import Dsv41Error
from dsv41_supervisor.gateway.admission import Lanes
from dsv41_supervisor.gateway.config import GatewayConfig
from dsv41_supervisor.settings import parse

from tests.harness.certificates import make_certificate

KEY = "a-key-for-the-tests-0123456789"
MAX_RSS_BYTES = 60 << 20
"""Goal of the gateway; a Spark's memory is the model's."""


@pytest.fixture
def settings(tmp_path: Path, free_ports: Callable[[], int]) -> dict[str, Any]:
    for name, text in (("api-keys", f"me:{KEY}\n"), ("fleet-key", "f" * 64 + "\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    nodes = {
        name: {"rank": rank, "management_address": f"127.0.0.{rank + 1}", "management_interface": "lo",
               "supervisor_port": free_ports()}
        for rank, name in enumerate(("spark1", "spark2"))
    }  # fmt: skip
    return {
        "fleet": {
            "name": "test",
            "topology": "switched",
            "key_file": str(tmp_path / "fleet-key"),
            "nodes": nodes,
        },
        "checkpoint": {"path": str(tmp_path), "revision": "0" * 40},
        "engine": {"python": sys.executable, "device": "cpu", "parallelism": {"tp_size": 2}},
        "gateway": {"port": free_ports(), "keys_file": str(tmp_path / "api-keys")},
    }


def command(tmp_path: Path, settings: dict[str, Any], node: str = "spark1") -> list[str]:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(settings))
    return [sys.executable, "-m", "dsv41_supervisor", "gateway", "--settings", str(file), "--node", node]


def refused(tmp_path: Path, settings: dict[str, Any], node: str = "spark1") -> tuple[int, str]:
    done = subprocess.run(
        command(tmp_path, settings, node), capture_output=True, text=True, timeout=20, check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip()


@pytest_asyncio.fixture
async def process(tmp_path: Path, settings: dict[str, Any]) -> AsyncIterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(command(tmp_path, settings), stderr=(tmp_path / "log").open("wb"))
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.wait(5)


async def answers(port: int, path: str, within_s: float = 15) -> tuple[int, dict[str, Any]]:
    """Status and body, as soon as it listens."""
    began = time.monotonic()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}{path}") as response:
                    return response.status, await response.json()
            except aiohttp.ClientConnectorError:
                if time.monotonic() - began > within_s:
                    raise
                await asyncio.sleep(0.05)


def rss_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


@pytest.mark.asyncio
async def test_it_runs_without_a_fleet_stays_small_and_stops_at_once(
    process: subprocess.Popen[bytes], settings: dict[str, Any], tmp_path: Path
) -> None:
    status, body = await answers(settings["gateway"]["port"], "/ready")
    assert status == 503 and body["ready"] is False
    assert (await answers(settings["gateway"]["port"], "/v1/models"))[0] == 200
    assert rss_bytes(process.pid) < MAX_RSS_BYTES
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    while process.poll() is None:
        assert time.monotonic() - began < 20, "it does not stop 20 s after SIGTERM"
        await asyncio.sleep(0.02)
    log = (tmp_path / "log").read_text()
    assert process.returncode == 0, log
    assert "the gateway listens on http://127.0.0.1:" in log and KEY not in log


def open_files(pid: int) -> set[str]:
    """What the process holds open. One that it closes while we look is not there any more, and is left out."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(link))
    return found


@pytest.mark.asyncio
async def test_it_listens_on_its_address_and_nowhere_else(
    process: subprocess.Popen[bytes], settings: dict[str, Any]
) -> None:
    await answers(settings["gateway"]["port"], "/ready")
    own = open_files(process.pid)
    listening = [
        fields[1]
        for table in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:])
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in own
    ]
    assert listening == [f"0100007F:{settings['gateway']['port']:04X}"]


def test_a_taken_port_is_one_sentence_and_worth_trying_again(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", settings["gateway"]["port"]))
        other.listen()
        status, said = refused(tmp_path, settings)
    port = settings["gateway"]["port"]
    assert status == 69 and f"127.0.0.1:{port} is taken." in said and "ss -ltnp" in said


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: (path / "api-keys").unlink(), "api-keys does not exist"),
        (lambda path: (path / "api-keys").write_text(""), "holds no key"),
        (lambda path: (path / "api-keys").chmod(0o644), "can be read by every user"),
        (lambda path: (path / "fleet-key").unlink(), "cannot read the fleet key"),
        (lambda path: (path / "fleet-key").write_text("\n"), "is empty"),
    ],
)
def test_keys_that_cannot_be_used_stop_it_before_it_listens(
    tmp_path: Path, settings: dict[str, Any], spoil: Any, says: str
) -> None:
    spoil(tmp_path)
    with pytest.raises(Dsv41Error) as error:
        gateway.run(parse(json.dumps(settings)), "spark1")
    assert error.value.exit_status == 78 and says in str(error.value)
    with pytest.raises(aiohttp.ClientConnectorError):
        asyncio.run(answers(settings["gateway"]["port"], "/ready", within_s=0))


def test_places_at_the_engine_are_as_many_as_it_runs_unless_others_are_named(settings: dict[str, Any]) -> None:
    def lanes() -> Lanes:
        return GatewayConfig.from_settings(parse(json.dumps(settings)), "spark1").lanes

    settings["engine"]["memory"] = {"max_running_requests": 4}
    assert (lanes().running, lanes().reserved) == (4, 1)
    settings["engine"]["memory"] = {"max_running_requests": 1}
    assert (lanes().running, lanes().reserved) == (1, 0)
    settings["gateway"]["admission"] = {"running_requests": 9, "short_reserved": 3}
    assert (lanes().running, lanes().reserved) == (9, 3)
    settings["gateway"]["admission"] = {"running_requests": 3, "short_reserved": 3}
    with pytest.raises(Dsv41Error) as refused:
        lanes()
    assert "short_reserved 3 is not below gateway.admission.running_requests 3" in str(refused.value)


@pytest.mark.asyncio
async def test_a_hangup_reads_the_certificate_again_and_doctor_gets_its_answer(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    certificate, key = make_certificate(tmp_path, "head")
    settings["gateway"]["tls"] = {"certificate": str(certificate), "key_file": str(key)}
    parsed = parse(json.dumps(settings))
    log = tmp_path / "log"
    with log.open("wb") as to, subprocess.Popen(command(tmp_path, settings), stderr=to) as process:
        try:
            await until(lambda: "the gateway listens on https://127.0.0.1:" in log.read_text())
            said = await asyncio.to_thread(read_gateway, parsed, 20)
            assert (said.problem, said.status, said.ours) == (None, 503, True)
            assert "read the certificate" not in log.read_text()
            process.send_signal(signal.SIGHUP)
            await until(lambda: f"read the certificate {certificate} again" in log.read_text())
            assert process.poll() is None
        finally:
            process.kill()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


def test_half_of_the_tls_files_are_refused(settings: dict[str, Any]) -> None:
    settings["gateway"]["tls"] = {"key_file": "/etc/dsv41/tls.key"}
    with pytest.raises(Dsv41Error) as refused:
        parse(json.dumps(settings))
    assert "gateway.tls.key_file is set and gateway.tls.certificate is not" in str(refused.value)


def test_certificate_files_that_this_user_cannot_read_come_as_credentials(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings["gateway"]["tls"] = {name: str(tmp_path / "only-root" / name) for name in ("certificate", "key_file")}

    def files() -> tuple[Path, Path]:
        tls = GatewayConfig.from_settings(parse(json.dumps(settings)), "spark1").tls
        assert tls is not None
        return tls.certificate, tls.key

    assert files() == (tmp_path / "only-root" / "certificate", tmp_path / "only-root" / "key_file")
    given = tmp_path / "credentials"
    given.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(given))
    for name in ("tls-certificate", "tls-key"):
        (given / name).write_text("-")  # what stands for a file that was missing
    assert files()[0].parent == tmp_path / "only-root"
    for name in ("tls-certificate", "tls-key"):
        (given / name).write_text("PEM")
    assert files() == (given / "tls-certificate", given / "tls-key")


def test_it_runs_on_the_head_only(tmp_path: Path, settings: dict[str, Any]) -> None:
    status, said = refused(tmp_path, settings, node="spark2")
    assert status == 78 and "the gateway runs on the head, which is spark1" in said and "\n" not in said


def test_it_imports_nothing_heavy() -> None:
    heavy = ("torch", "sglang", "numpy", "rich", "pyroute2", "dsv41_rowstore", "hypothesis")
    code = f"import sys, dsv41_supervisor.gateway.service; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.strip() == "[]"


def test_its_event_loop_is_not_loaded_by_the_supervisor() -> None:
    code = "import sys, dsv41_supervisor.daemon, dsv41_supervisor.commands.supervisor; print('uvloop' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.strip() == "False"
