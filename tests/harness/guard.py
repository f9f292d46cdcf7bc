"""A real guard process for tests, and cgroups to point it at: a real one, or files that say what the test wants."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.guard import process as guard_process
from dsv41_supervisor.guard.target import read_stat

PROGRAM = Path(guard_process.__file__).with_name("__main__.py")
MIB = 1 << 20


class GuardUnderTest:
    """One guard, and a connection to it as a supervisor has one."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.path = Path(config["socket"])
        self.process = subprocess.Popen([sys.executable, "-I", "-S", str(PROGRAM), json.dumps(config)])
        self.heard: list[dict[str, Any]] = []
        self.sock = self.connect()

    def connect(self, timeout_s: float = 60) -> socket.socket:
        deadline = time.monotonic() + timeout_s
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                sock.connect(str(self.path))
                return sock
            except OSError:
                sock.close()
                assert time.monotonic() < deadline and self.process.poll() is None, "the guard does not listen"
                time.sleep(0.02)

    def say(self, **message: Any) -> None:
        self.sock.send(json.dumps(message).encode())

    def watch(self, pid: int, start_ticks: int | None = None, unit: str = "dsv41-rank@0.service") -> None:
        stat = read_stat(pid)
        assert stat is not None
        ticks = stat.start_ticks if start_ticks is None else start_ticks
        self.say(watch={"unit": unit, "rank": 0, "boot": "b1", "pid": pid, "start_ticks": ticks})

    def until(self, what: str, timeout_s: float = 60, **more: Any) -> dict[str, Any]:
        """The next message of a kind."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.sock.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                text = self.sock.recv(1 << 16)
            except TimeoutError:
                raise AssertionError(f"no {what} {more} within {timeout_s} s; heard {self.heard[-5:]}") from None
            assert text, "the guard has gone"
            message = json.loads(text)
            self.heard.append(message)
            if message["what"] == what and all(message.get(k) == v for k, v in more.items()):
                return message

    def close(self) -> None:
        self.sock.close()
        self.process.terminate()
        self.process.wait(60)


@contextlib.contextmanager
def running_guard(tmp_path: Path, **config: Any) -> Iterator[GuardUnderTest]:
    defaults = {"floor_bytes": 100 * MIB, "warn_bytes": 125 * MIB, "period_s": 0.1}
    guard = GuardUnderTest(defaults | {"socket": str(tmp_path / "guard.sock")} | config)
    try:
        yield guard
    finally:
        guard.close()


class FakeCgroup:
    """Files of a cgroup v2 that say how much is left. Written in place, as the kernel's own change in place."""

    def __init__(self, directory: Path, available: int) -> None:
        self.directory = directory
        directory.mkdir()
        (directory / "memory.max").write_text(f"{1 << 40}\n")
        (directory / "memory.stat").write_text("anon 0\nfile 0\ninactive_file 0\n")
        (directory / "memory.current").write_text(" " * 32)
        self.leave(available)

    def leave(self, available: int) -> None:
        with (self.directory / "memory.current").open("r+") as file:
            file.write(f"{(1 << 40) - available:<31}\n")


class MemoryCgroup:
    """A real memory cgroup, v1 or v2."""

    def __init__(self, directory: Path, v2: bool) -> None:
        self.directory, self._v2 = directory, v2

    def limit(self, n_bytes: int) -> None:
        (self.directory / ("memory.max" if self._v2 else "memory.limit_in_bytes")).write_text(str(n_bytes))

    @property
    def n_oom_kills(self) -> int:
        text = (self.directory / ("memory.events" if self._v2 else "memory.oom_control")).read_text()
        return int(dict(line.split() for line in text.splitlines())["oom_kill"])

    @property
    def n_at_limit(self) -> int:
        """How often the limit was run into."""
        if self._v2:
            text = (self.directory / "memory.events").read_text()
            return int(dict(line.split() for line in text.splitlines())["max"])
        return int((self.directory / "memory.failcnt").read_text())


@contextlib.contextmanager
def memory_cgroup(name: str, limit_bytes: int) -> Iterator[MemoryCgroup]:
    """A cgroup with a limit; the test is skipped, with the reason, where this machine gives none."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    is_v2 = (v2 / "cgroup.controllers").exists()
    root = v2 if is_v2 else v1
    directory = root / f"{name}-{os.getpid()}"
    if is_v2 and "memory" not in (root / "cgroup.subtree_control").read_text().split():
        pytest.skip(f"{root} does not delegate the memory controller")
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {directory}: {error.strerror}")
    try:
        cgroup = MemoryCgroup(directory, is_v2)
        cgroup.limit(limit_bytes)
        yield cgroup
    finally:
        deadline = time.monotonic() + 60
        while True:
            try:
                directory.rmdir()
                break
            except OSError:
                assert time.monotonic() < deadline, f"{directory} cannot be removed"
                time.sleep(0.05)
