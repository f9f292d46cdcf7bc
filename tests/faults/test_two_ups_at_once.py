"""Fault: two people run `dsv41 up` at the same moment.

What the user sees: both commands end with 0 and the same boot; one of them says that nothing was changed.
What the operator sees: two lines in the audit log with who asked, and one boot (MESSAGE_ID BOOT_STARTED).
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.harness.faults import Fault
from tests.harness.fleet import running_fleet


async def test_two_ups_make_one_boot_and_both_succeed(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False) as fleet:
        fault = Fault(
            "two `dsv41 up` at once",
            sees="both exit 0 with the same boot",
            journal="one boot … starts (BOOT_STARTED)",
        )
        both = await asyncio.gather(fleet.dsv41("up"), fleet.dsv41("up"))
        fault.mark("serving")
        boots = set()
        for code, text in both:
            assert code == 0, text
            boots |= set(re.findall(r"serving: boot (\S+)", text))
        assert len(boots) == 1, both
        assert sum("nothing was changed" in text for _, text in both) == 1, both
        assert fleet.log("spark1").count("[BOOT_STARTED]") == 1
        down_and_up = await asyncio.gather(fleet.dsv41("down"), fleet.dsv41("up"))
        status = await fleet.until(lambda s: s["state"] in ("serving", "down"), "the last order holds", 60)
        assert status["wanted"] == ("up" if status["state"] == "serving" else "down"), down_and_up
        fault.report()
