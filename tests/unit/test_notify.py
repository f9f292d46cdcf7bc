"""What systemd hears: datagrams on its socket, and nothing that could hold or end the process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from dsv41_supervisor.credentials import FLEET_KEY, MISSING, credential
from dsv41_supervisor.rank.notify import notify, watchdog_beat_s


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        server.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield server


def test_assignments_are_lines_of_one_datagram(manager: socket.socket) -> None:
    notify("READY=1", "STATUS=fleet failed (spark2, fabric: rail b\nis down)")
    assert manager.recv(4096) == b"READY=1\nSTATUS=fleet failed (spark2, fabric: rail b is down)"


def test_a_status_is_cut_before_a_datagram_is_too_large(manager: socket.socket) -> None:
    notify("STATUS=" + "x" * 100_000)
    assert len(manager.recv(1 << 20)) == 300


def test_a_manager_that_does_not_read_or_is_away_does_not_hold_the_process(manager: socket.socket) -> None:
    for _ in range(2000):
        notify("WATCHDOG=1")
    manager.close()
    notify("WATCHDOG=1")


def test_the_abstract_socket_of_a_container_works(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"dsv41-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind("\0" + name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        notify("READY=1")
        assert server.recv(100) == b"READY=1"


@pytest.mark.parametrize(("environment", "beat_s"), [
    ({"WATCHDOG_USEC": "9000000"}, 3.0),
    ({"WATCHDOG_USEC": "9000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
    ({"WATCHDOG_USEC": "9000000", "WATCHDOG_PID": "1"}, None),
    ({"WATCHDOG_USEC": "0"}, None),
    ({"WATCHDOG_USEC": "soon"}, None),
    ({}, None),
])  # fmt: skip
def test_the_beat_is_a_third_of_what_systemd_waits(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], beat_s: float | None
) -> None:
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert watchdog_beat_s() == beat_s


def test_a_credential_goes_before_the_path_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    assert credential(FLEET_KEY) is None
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert credential(FLEET_KEY) is None
    path = tmp_path / FLEET_KEY
    path.write_text("k" * 64 + "\n")
    assert credential(FLEET_KEY) == path
    path.write_bytes(MISSING)
    assert credential(FLEET_KEY) is None
