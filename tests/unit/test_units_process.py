"""Units as child processes: everything a unit started is found, stopped and named; a restart takes units over."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from dsv41_supervisor.errors import Dsv41Error
from dsv41_supervisor.units import UnitState, UnitStatus
from dsv41_supervisor.units.process import ProcessUnits, UnitDefinition
from dsv41_supervisor.units.procfs import read, start_time

SLEEPER = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)
FAMILY = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True)
print("child", child.pid, flush=True)
time.sleep(600)
"""
ORPHANING = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}])
print("child", child.pid, flush=True)
sys.exit(3)
"""


def _units(tmp_path: Path, code: str, on_exit=None, oneshot: bool = False) -> ProcessUnits:  # type: ignore[no-untyped-def]
    environment = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
    definition = UnitDefinition([sys.executable, "-c", code], environment, tmp_path / "unit.log", oneshot)
    return ProcessUnits(lambda unit: definition, tmp_path / "records", on_exit)


HEADLESS = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("headless", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""


async def _line(tmp_path: Path, start: str) -> str:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        lines = (tmp_path / "unit.log").read_text().splitlines()
        for line in lines:
            if line.startswith(start):
                return line
        await asyncio.sleep(0.02)
    raise AssertionError(f"no line {start!r} within 10 s")


async def _gone(pid: int) -> None:
    deadline = time.monotonic() + 5
    while (found := read(pid)) is not None and found.state != "Z":
        assert time.monotonic() < deadline, f"process {pid} still lives"
        await asyncio.sleep(0.02)


async def test_starting_twice_starts_once_and_stopping_twice_is_safe(tmp_path: Path) -> None:
    units = _units(tmp_path, SLEEPER)
    await units.start("u")
    first = (await units.status("u")).main_pid
    await units.start("u")
    assert (await units.status("u")).main_pid == first
    assert (await units.stop("u", 5)).members == ()
    assert (await units.stop("u", 5)).state is UnitState.INACTIVE
    assert first is not None and start_time(first) is None


async def test_a_unit_that_ignores_sigterm_is_stopped_by_force(tmp_path: Path) -> None:
    units = _units(tmp_path, STUBBORN)
    await units.start("u")
    await _line(tmp_path, "deaf")
    began = time.monotonic()
    assert (await units.stop("u", 0.3)).members == ()
    assert time.monotonic() - began < 5


async def test_a_child_in_a_session_of_its_own_is_stopped_too(tmp_path: Path) -> None:
    units = _units(tmp_path, FAMILY)
    await units.start("u")
    child = int((await _line(tmp_path, "child")).split()[1])
    assert child in (await units.status("u")).members
    assert (await units.stop("u", 1)).members == ()
    await _gone(child)


async def test_a_zombie_whose_threads_still_live_is_not_taken_for_gone(tmp_path: Path) -> None:
    # SIGKILL of a process of many gigabytes: its leader is a zombie while other threads still hold memory and ports.
    units = _units(tmp_path, HEADLESS)
    await units.start("u")
    await _line(tmp_path, "headless")
    pid = (await units.status("u")).main_pid
    assert pid is not None
    deadline = time.monotonic() + 5
    while (found := read(pid)) is None or found.state != "Z":
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.02)
    assert (await units.status("u")).members == (pid,)
    assert (await units.stop("u", 0.1)).members == ()
    assert start_time(pid) is None


async def test_orphans_that_end_are_reaped(tmp_path: Path) -> None:
    units = _units(tmp_path, FAMILY)
    await units.start("u")
    child = int((await _line(tmp_path, "child")).split()[1])
    assert child in (await units.status("u")).members
    await units.stop("u", 1)
    deadline = time.monotonic() + 10
    while read(child) is not None:
        assert time.monotonic() < deadline, "the orphan is still there as a zombie"
        await asyncio.sleep(0.05)


async def test_what_outlives_a_failed_main_process_is_killed_and_the_failure_is_told(tmp_path: Path) -> None:
    ended: asyncio.Queue[UnitStatus] = asyncio.Queue()
    units = _units(tmp_path, ORPHANING, ended.put_nowait)
    await units.start("u")
    status = await asyncio.wait_for(ended.get(), 10)
    assert (status.state, status.exit_status) == (UnitState.FAILED, 3)
    await _gone(int((await _line(tmp_path, "child")).split()[1]))


async def test_a_killed_main_process_is_told_with_its_signal_at_once(tmp_path: Path) -> None:
    ended: asyncio.Queue[UnitStatus] = asyncio.Queue()
    units = _units(tmp_path, SLEEPER, ended.put_nowait)
    await units.start("u")
    pid = (await units.status("u")).main_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    status = await asyncio.wait_for(ended.get(), 2)
    assert status.exit_status == -signal.SIGKILL


async def test_a_restarted_supervisor_takes_a_running_unit_over(tmp_path: Path) -> None:
    before = _units(tmp_path, SLEEPER)
    await before.start("u")
    pid = (await before.status("u")).main_pid
    await before.close(stop_all=False)
    ended: asyncio.Queue[UnitStatus] = asyncio.Queue()
    after = _units(tmp_path, SLEEPER, ended.put_nowait)
    assert (await after.status("u")).main_pid == pid
    assert (await after.stop("u", 5)).members == ()
    assert pid is not None and start_time(pid) is None


async def test_a_record_of_a_process_that_is_another_now_is_not_believed(tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.mkdir()
    (records / "unit-u.json").write_text(f'{{"pid": {os.getpid()}, "started": 1}}')
    (records / "unit-v.json").write_text("{torn")
    units = _units(tmp_path, SLEEPER)
    assert (await units.status("u")).state is UnitState.INACTIVE
    assert (await units.status("v")).state is UnitState.INACTIVE
    assert list(records.iterdir()) == []


async def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    definition = UnitDefinition(["/nonexistent/python"], {}, tmp_path / "unit.log")
    units = ProcessUnits(lambda unit: definition, tmp_path / "records")
    with pytest.raises(Dsv41Error, match="cannot start u: /nonexistent/python: No such file or directory"):
        await units.start("u")
