"""What both backends are tested with: units made of a few lines of Python, and a backend that starts them.

The backend is child processes, or systemd where DSV41_UNITS=systemd says that PID 1 is one (tests/nspawn does).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dsv41_supervisor.units import OnExit, Units, UnitStatus
from dsv41_supervisor.units.process import ProcessUnits, UnitDefinition

NAME = "dsv41-contract"
_mark: str | None = None
"""First line of the program that was defined last."""
UNIT_FILE = """\
[Service]
Type={type}
ExecStart={python} -u {program}
KillMode=mixed
TimeoutStopSec=60
"""


class Bench:
    """One unit, `NAME`, whose program is `define`d; every `open` is a supervisor that starts."""

    def __init__(self, tmp_path: Path) -> None:
        self.program = tmp_path / "unit.py"
        self._tmp_path = tmp_path
        self._opened: list[Units] = []
        self._oneshot = False

    async def define(self, code: str, *, oneshot: bool = False) -> None:
        global _mark
        _mark = f"--- {secrets.token_hex(8)}"
        self.program.write_text(f"print({_mark!r}, flush=True)\n{code}")
        self._oneshot = oneshot

    async def open(self, on_exit: OnExit | None = None) -> Units:
        definition = UnitDefinition(
            [sys.executable, "-u", str(self.program)], {"PATH": os.environ["PATH"]}, self._tmp_path / "unit.log",
            self._oneshot,
        )  # fmt: skip
        units = ProcessUnits({NAME: definition}.__getitem__, self._tmp_path / "records", on_exit)
        self._opened.append(units)
        return units

    async def run(self, code: str, on_exit: OnExit | None = None, *, oneshot: bool = False) -> Units:
        """Define, open, start."""
        await self.define(code, oneshot=oneshot)
        units = await self.open(on_exit)
        await units.start(NAME)
        return units

    async def close(self) -> None:
        last = self._opened[-1] if self._opened else None
        for units in self._opened:
            if units is last:
                await units.stop(NAME, 0)
            await units.close(stop_all=False)


class SystemdBench(Bench):
    """The same with a unit file and the systemd that is PID 1 here."""

    async def define(self, code: str, *, oneshot: bool = False) -> None:
        await super().define(code, oneshot=oneshot)
        text = UNIT_FILE.format(type="oneshot" if oneshot else "simple", python=sys.executable, program=self.program)
        self._write_unit(text)

    def write_unit(self, text: str) -> None:
        """A unit of the test's own, instead of a program."""
        global _mark
        _mark = None
        self._write_unit(text)

    def _write_unit(self, text: str) -> None:
        directory = Path("/run/systemd/system")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{NAME}.service").write_text(text)
        subprocess.run(["systemctl", "daemon-reload"], check=True)

    async def close(self) -> None:
        await super().close()
        subprocess.run(["systemctl", "reset-failed", f"{NAME}.service"], capture_output=True)

    async def open(self, on_exit: OnExit | None = None) -> Units:
        from dsv41_supervisor.units.systemd import SystemdUnits

        units = SystemdUnits([NAME], on_exit)
        await units.open()
        self._opened.append(units)
        return units


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not seen within {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


async def until_state(
    units: Units, wanted: Callable[[UnitStatus], bool], what: str, timeout_s: float = 30
) -> UnitStatus:
    deadline = time.monotonic() + timeout_s
    while not wanted(status := await units.status(NAME)):
        assert time.monotonic() < deadline, f"not seen within {timeout_s} s: {what}; last {status}"
        await asyncio.sleep(0.02)
    return status


async def line(units: Units, start: str, timeout_s: float = 30) -> str:
    """The newest line of the unit as it was defined last that begins so: a journal keeps those of other tests too."""
    deadline = time.monotonic() + timeout_s
    while True:
        lines = list(await units.tail(NAME, 50))
        for text in reversed(lines[lines.index(_mark) :] if _mark in lines else lines if _mark is None else []):
            if text.startswith(start):
                return text
        assert time.monotonic() < deadline, f"no line {start!r} within {timeout_s} s: {lines}"
        await asyncio.sleep(0.05)
