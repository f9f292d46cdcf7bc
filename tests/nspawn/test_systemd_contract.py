"""Tests that run inside a machine whose PID 1 is systemd: the contract of units, and what only systemd can do wrong."""

from __future__ import annotations

import re

import pytest
from machine import OPT, Machine


@pytest.mark.parametrize(("folder", "at_least"), [("tests/units_contract", 20), ("tests/nspawn/inside", 22)])
def test_holds_against_a_real_systemd(machine: Machine, folder: str, at_least: int) -> None:
    done = machine.run(
        "env", "DSV41_UNITS=systemd", "PYTHONDONTWRITEBYTECODE=1", f"{OPT}/venv/bin/python", "-m", "pytest",
        f"{OPT}/src/{folder}", "-q", "-p", "no:cacheprovider", "-o", "python_files=test_*.py inside_*.py",
        f"--rootdir={OPT}/src", f"--basetemp=/var/tmp/{folder.replace('/', '-')}",
        check=False, timeout_s=250,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed.group(1)) >= at_least, done.stdout
    assert "skipped" not in done.stdout
