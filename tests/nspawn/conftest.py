"""Machines with a real systemd. Where they cannot be had the tests are skipped, with the reason; never passed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from machine import Machine, why_not


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One machine for the tests of a file."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no machine with systemd: {reason}")
    work = tmp_path_factory.mktemp("machine")
    (work / "shared").mkdir()
    machine = Machine(f"dsv41t{work.parent.name.rpartition('-')[2]}", work, work / "shared")
    try:
        machine.boot()
        yield machine
    finally:
        machine.power_off()
