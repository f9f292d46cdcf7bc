"""What only the backend of child processes can do wrong; the rest is tests/units_contract."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest
from dsv41_supervisor.errors import Dsv41Error
from dsv41_supervisor.units import UnitState
from dsv41_supervisor.units.process import ProcessUnits, UnitDefinition
from dsv41_supervisor.units.procfs import read, start_time

SLEEPER = "import time; time.sleep(600)"
FAMILY = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True)
print("child", child.pid, flush=True)
time.sleep(600)
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
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lines = (tmp_path / "unit.log").read_text().splitlines()
        for line in lines:
            if line.startswith(start):
                return line
        await asyncio.sleep(0.02)
    raise AssertionError(f"no line {start!r} within 60 s")


async def _gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while (found := read(pid)) is not None and found.state != "Z":
        assert time.monotonic() < deadline, f"process {pid} still lives"
        await asyncio.sleep(0.02)


async def test_a_zombie_whose_threads_still_live_is_not_taken_for_gone(tmp_path: Path) -> None:
    # SIGKILL of a process of many gigabytes: its leader is a zombie while other threads still hold memory and ports.
    units = _units(tmp_path, HEADLESS)
    await units.start("u")
    await _line(tmp_path, "headless")
    pid = (await units.status("u")).main_pid
    assert pid is not None
    deadline = time.monotonic() + 60
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
    deadline = time.monotonic() + 60
    while read(child) is not None:
        assert time.monotonic() < deadline, "the orphan is still there as a zombie"
        await asyncio.sleep(0.05)


async def test_a_record_of_a_process_that_is_another_now_is_not_believed(tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.mkdir()
    (records / "unit-u.json").write_text(f'{{"pid": {os.getpid()}, "started": 1}}')
    (records / "unit-v.json").write_text("{torn")
    units = _units(tmp_path, SLEEPER)
    assert (await units.status("u")).state is UnitState.INACTIVE
    assert (await units.status("v")).state is UnitState.INACTIVE
    assert [path.name for path in records.iterdir()] == ["unit-v.json.unreadable"]


async def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    definition = UnitDefinition(["/nonexistent/python"], {}, tmp_path / "unit.log")
    units = ProcessUnits(lambda unit: definition, tmp_path / "records")
    with pytest.raises(Dsv41Error, match="cannot start u: /nonexistent/python: No such file or directory"):
        await units.start("u")
