"""`dsv41 demo` as a person runs it, with the scripted engine: sizes, report, Ctrl-C, SIGKILL; nothing is left over."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.left import Left, look

SCRIPTED = "scripted engine: a test double answers here, not SGLang"


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Processes, links, mounts and listening sockets are the same after a test as before it."""
    before = look(tmp_path / "state")
    yield
    deadline = time.monotonic() + 60
    while (left := look(tmp_path / "state") - before) != Left() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == Left()


def _argv(state: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "dsv41_supervisor", "demo", "--engine", "scripted", "--state", str(state), *more]


def _once(state: Path, *more: str) -> tuple[subprocess.CompletedProcess[str], dict]:  # type: ignore[type-arg]
    done = subprocess.run(_argv(state, "--once", "--json", *more), capture_output=True, text=True, timeout=240)
    return done, json.loads(done.stdout) if done.returncode == 0 else {}


@pytest.mark.parametrize(
    ("more", "nodes"),
    [((), 3), (("--tp", "1"), 1), (("--nodes", "4"), 4), (("--tp", "3", "--loopback"), 3)],
)
def test_once_prints_one_report_and_leaves_nothing(
    tmp_path: Path, nothing_left: None, more: tuple[str, ...], nodes: int
) -> None:
    done, report = _once(tmp_path / "state", *more)
    assert done.returncode == 0, done.stderr
    assert [(r["node"], r["rank"], r["state"]) for r in report["ranks"]] == [
        (f"spark{i + 1}", i, "ready") for i in range(nodes)
    ]
    assert len(report["supervisors_rss_mb"]) == nodes
    assert max(report["supervisors_rss_mb"]) < 80
    assert report["completion_tokens"] > 0
    assert report["answer"].startswith("[scripted engine]")
    assert report["engine"] == SCRIPTED
    assert {"checkpoint", "network", "fabric", "share", "pack", "rank", "engine", "gateway"} <= set(report["stages"])
    assert SCRIPTED in done.stderr
    if "--loopback" in more:
        assert report["network"] == "loopback"
        assert any("rails" in sentence for sentence in report["shows_not"])


def test_tp_and_nodes_that_do_not_fit_are_refused_by_the_settings(tmp_path: Path, nothing_left: None) -> None:
    done, _ = _once(tmp_path / "state", "--tp", "4", "--nodes", "3")
    assert done.returncode == 78
    assert "engine.parallelism.tp_size is 4, but fleet.nodes has 3" in done.stderr


def test_ctrl_c_stops_everything(tmp_path: Path, nothing_left: None) -> None:
    demo = _start(tmp_path)
    try:
        endpoint = _until_up(demo, tmp_path)
        key = (tmp_path / "state" / "api-keys").read_text().split(":", 1)[1].strip()
        request = urllib.request.Request(f"{endpoint}/models", headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["data"]
        second, _ = _once(tmp_path / "state")
        assert second.returncode == 69
        assert f"another demo (process {demo.pid}) runs in" in second.stderr
        demo.send_signal(signal.SIGINT)
        assert demo.wait(120) == 130
    finally:
        demo.kill()
        demo.wait()
    (last,) = [line for line in (tmp_path / "demo.log").read_text().splitlines() if line.startswith("stopped; ")]
    assert last.startswith("stopped; nothing is left but files: ")
    assert str(tmp_path / "state") in last and str(tmp_path / "checkpoint") in last


def test_a_demo_killed_with_sigkill_leaves_nothing_either(tmp_path: Path, nothing_left: None) -> None:
    demo = _start(tmp_path)
    try:
        _until_up(demo, tmp_path)
    finally:
        demo.kill()
        demo.wait()


def test_a_taken_port_is_named(tmp_path: Path, nothing_left: None) -> None:
    with socket.socket() as foreign:
        foreign.bind(("127.0.41.1", 0))
        foreign.listen()
        port = foreign.getsockname()[1]
        done, _ = _once(tmp_path / "state", "--nodes", "1", "--loopback", "--port", str(port))
    assert done.returncode == 69
    assert f"port {port} on 127.0.41.1" in done.stderr


def test_a_source_that_is_not_a_checkout_is_refused(tmp_path: Path, nothing_left: None) -> None:
    done, _ = _once(tmp_path / "state", "--source", str(tmp_path))
    assert done.returncode == 78
    assert "is not a checkout of the project" in done.stderr


def _start(tmp_path: Path) -> subprocess.Popen[bytes]:
    with (tmp_path / "demo.log").open("wb") as log:
        return subprocess.Popen(
            _argv(tmp_path / "state"),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TERM": "dumb"},
        )


def _until_up(demo: subprocess.Popen[bytes], tmp_path: Path) -> str:
    """The endpoint, once the demo has said it and answered its own first question."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        text = (tmp_path / "demo.log").read_text()
        if "fleet: serving" in text:
            return next(line.split()[1] for line in text.splitlines() if line.startswith("endpoint"))
        assert demo.poll() is None, text
        time.sleep(0.1)
    raise AssertionError(f"not up after 180 s: {(tmp_path / 'demo.log').read_text()}")
