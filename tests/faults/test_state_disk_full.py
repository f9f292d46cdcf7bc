"""Fault: the drive with the supervisors' state and logs is full, while the fleet serves and while it is started.

What the user sees: answers go on, and a lost rank is still recovered; what cannot be written is a warning in `status`.
When a rank's log cannot even be opened, `dsv41 up` says so and exits with 69. With space again everything works.
What the operator sees: `cannot write …: No space left on device`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness.faults import Fault
from tests.harness.fleet import kill, running_fleet

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
SMALL_BYTES = 4 << 20


@contextmanager
def _small_drive(path: Path) -> Iterator[None]:
    path.mkdir(parents=True)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={SMALL_BYTES},mode=0755".encode()
    if libc.mount(b"tmpfs", str(path).encode(), b"tmpfs", 0, options):
        pytest.skip(f"a tmpfs cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        assert libc.umount2(str(path).encode(), 0) == 0, os.strerror(ctypes.get_errno())


def _fill(path: Path) -> Path:
    """Take every byte that is left."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


async def test_a_full_state_drive_costs_memory_of_the_past_and_nothing_else(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    drive = tmp_path / "drive"

    def on_small_drive(raw: dict[str, Any]) -> None:
        raw["supervisor"] |= {"state_dir": f"{drive}/{{node}}"}
        raw["recovery"] |= {"backoff_s": 0, "max_recoveries": 20}

    with _small_drive(drive):
        async with running_fleet(
            tmp_path, demo_checkpoint, loopback=True, gateway=False, change=on_small_drive
        ) as fleet:
            before = await fleet.up()
            assert before["state"] == "serving", before["refusals"]
            filler = _fill(drive)
            fault = Fault(
                "state drive full while serving, then a rank killed",
                sees="a warning; the fleet recovers all the same",
                journal="cannot write …: No space left on device",
            )
            kill(fleet.engine_process(1, "scheduler"))
            await fleet.until(lambda s: s["state"] == "recovering", "the loss was noticed", 20)
            after = await fleet.until(lambda s: s["state"] in ("serving", "failed"), "it serves again", 60)
            assert after["state"] == "serving", after["reason"]
            assert after["boot"]["generation"] > before["boot"]["generation"]
            fault.report(after)
            for node in ("spark1", "spark2", "spark3"):
                await fleet.said(node, "cannot write .*node.json: No space left on device")
                assert any("No space left" in w for w in after["nodes"][node]["warnings"]), node
            await fleet.said("spark1", "cannot write .*fleet.json: No space left on device")
            assert "Traceback" not in fleet.log("spark1")

            filler.unlink()
            await fleet.head.call("POST", "/fleet/down", {})
            down = await fleet.until(lambda s: s["state"] == "down", "down works")
            assert all(n["measured"]["n_processes"] == 0 for n in down["nodes"].values())
            assert not any("No space left" in w for n in down["nodes"].values() for w in n["warnings"])
            assert '"wanted": "down"' in (drive / "spark1" / "fleet.json").read_text()
            assert (await fleet.up())["state"] == "serving"


async def test_a_full_drive_under_the_logs_refuses_a_boot_in_words(tmp_path: Path, demo_checkpoint: Path) -> None:
    drive = tmp_path / "drive"

    def on_small_drive(raw: dict[str, Any]) -> None:
        raw["supervisor"] |= {"run_dir": f"{drive}/{{node}}"}

    with _small_drive(drive):
        async with running_fleet(
            tmp_path, demo_checkpoint, loopback=True, gateway=False, change=on_small_drive
        ) as fleet:
            filler = _fill(drive)
            fault = Fault(
                "drive of the logs full at a start",
                sees="`up` says so; exit 69",
                journal="the boot failed: … No space left on device",
            )
            code, text = await fleet.dsv41("up")
            fault.mark("noticed")
            assert code == 69, text
            assert "No space left on device" in text or "no space" in text.lower(), text
            assert "Traceback" not in text and "a bug" not in text, text
            status = await fleet.status()
            assert all(n["measured"]["n_processes"] == 0 for n in status["nodes"].values())
            fault.report()
            filler.unlink()
            again = await fleet.up()
            assert again["state"] == "serving", again["refusals"]
            await fleet.head.call("POST", "/fleet/down", {})
            await fleet.until(lambda s: s["state"] == "down", "down")
