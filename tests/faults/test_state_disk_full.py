"""Fault: the drive with the supervisors' state and logs is full, while the fleet serves and while it is started.

What the user sees: answers go on, a lost rank is still recovered, and `down` is still down after a restart: the head
keeps some space for its record. What cannot be written is a warning in `status`. When even that space is gone, `up`,
`pause` and `resume` are refused with 69; `down` is done, ends with 1 and says that it is not on disk; it is written
later. When a rank's log cannot even be opened, `dsv41 up` says so and exits with 69. With space again everything works.
What the operator sees: `cannot write …: No space left on device`.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.harness.drive import fill, small_drive
from tests.harness.faults import Fault
from tests.harness.fleet import kill, running_fleet

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


def _record(drive: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((drive / "spark1" / "fleet.json").read_text())
    return record


async def test_a_full_state_drive_costs_memory_of_the_past_and_nothing_else(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    drive = tmp_path / "drive"

    def on_small_drive(raw: dict[str, Any]) -> None:
        raw["supervisor"] |= {"state_dir": f"{drive}/{{node}}"}
        raw["recovery"] |= {"backoff_s": 0, "max_recoveries": 20}

    with small_drive(drive):
        async with running_fleet(
            tmp_path, demo_checkpoint, loopback=True, gateway=False, change=on_small_drive
        ) as fleet:
            before = await fleet.up()
            assert before["state"] == "serving", before["refusals"]
            filler = fill(drive)
            fault = Fault(
                "state drive full while serving, then a rank killed",
                sees="a warning; the fleet recovers all the same",
                journal="cannot write …: No space left on device",
            )
            kill(fleet.engine_process(1, "scheduler"))
            await fleet.until(lambda s: s["state"] == "recovering", "the loss was noticed", 60)
            after = await fleet.until(lambda s: s["state"] in ("serving", "failed"), "it serves again", 60)
            assert after["state"] == "serving", after["reason"]
            assert after["boot"]["generation"] > before["boot"]["generation"]
            fault.report(after)
            # Each node tells what it could not write when it has tried, which may be after the fleet serves again.
            after = await fleet.until(
                lambda s: all(any("No space left" in w for w in n["warnings"]) for n in s["nodes"].values()),
                "every node warns", 60,
            )  # fmt: skip
            for node in ("spark1", "spark2", "spark3"):
                await fleet.said(node, "cannot write .*node.json: No space left on device")
            # What was kept free for the head's record is enough, again and again.
            assert after["unwritten"] is None
            assert _record(drive)["boot"]["id"] == after["boot"]["id"]
            code, text = await fleet.dsv41("down")
            assert code == 0, text
            assert _record(drive)["wanted"] == "down"
            await fleet.stop_supervisor("spark1")
            await fleet.start_supervisor("spark1")
            back = await fleet.until_answering(lambda s: "rank" in s["nodes"]["spark1"], "the head is back")
            assert (back["wanted"], back["state"]) == ("down", "down")
            assert (await fleet.up())["state"] == "serving"
            assert "Traceback" not in fleet.log("spark1")

            filler.unlink()
            await fleet.head.call("POST", "/fleet/down", {})
            down = await fleet.until(lambda s: s["state"] == "down", "down works")
            assert all(n["measured"]["n_processes"] == 0 for n in down["nodes"].values())
            assert not any("No space left" in w for n in down["nodes"].values() for w in n["warnings"])
            assert _record(drive)["wanted"] == "down"
            assert (await fleet.up())["state"] == "serving"


async def test_an_order_that_cannot_be_written_down_is_refused_and_down_is_not(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    drive = tmp_path / "drive"

    def on_small_drive(raw: dict[str, Any]) -> None:
        raw["supervisor"] |= {"state_dir": f"{drive}/{{node}}"}

    with small_drive(drive):
        async with running_fleet(
            tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False, change=on_small_drive
        ) as fleet:
            assert (await fleet.up())["state"] == "serving"
            fault = Fault(
                "state drive full to the last byte, then down and up",
                sees="down is done and said not to be on disk; up is refused with 69",
                journal="cannot write …/fleet.json: No space left on device",
            )
            fillers = [fill(drive)]
            (drive / "spark1" / "fleet.json.spare").unlink()
            fillers.append(fill(drive, "the spare's room"))
            code, text = await fleet.dsv41("pause")
            assert code == 69 and "pause is refused: cannot write" in text and "Free some space" in text, text
            assert (await fleet.status())["paused_by"] is None
            code, text = await fleet.dsv41("down")
            said = "down: every rank is gone, but what was ordered last (wanted: down) is not on disk"
            assert code == 1 and said in text, text
            fault.mark("stopped")
            await fleet.said("spark1", "cannot write .*fleet.json: No space left on device")
            code, text = await fleet.dsv41("status")
            assert code == 69 and "(wanted: down) is not on disk" in text, text
            assert _record(drive)["wanted"] == "up"
            code, text = await fleet.dsv41("up")
            assert code == 69 and "up is refused: cannot write" in text and "Traceback" not in text, text
            for filler in fillers:
                filler.unlink()
            async with asyncio.timeout(60):
                while _record(drive)["wanted"] != "down":
                    await asyncio.sleep(0.1)
            await fleet.until(lambda s: s["unwritten"] is None, "it is on disk")
            await fleet.stop_supervisor("spark1")
            await fleet.start_supervisor("spark1")
            back = await fleet.until_answering(lambda s: "rank" in s["nodes"]["spark1"], "the head is back")
            assert (back["wanted"], back["state"]) == ("down", "down")
            fault.report()


async def test_a_full_drive_under_the_logs_refuses_a_boot_in_words(tmp_path: Path, demo_checkpoint: Path) -> None:
    drive = tmp_path / "drive"

    def on_small_drive(raw: dict[str, Any]) -> None:
        raw["supervisor"] |= {"run_dir": f"{drive}/{{node}}"}

    with small_drive(drive):
        async with running_fleet(
            tmp_path, demo_checkpoint, loopback=True, gateway=False, change=on_small_drive
        ) as fleet:
            filler = fill(drive)
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
