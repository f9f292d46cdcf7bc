"""Fault: a checkpoint file is missing, another is cut short.

What the user sees: `dsv41 up` names both files on every node that reads them, and exits with 78. No rank is started.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

from dsv41_supervisor.share import checkpoint_files

from tests.harness.fleet import running_fleet


async def test_up_names_every_damaged_file_and_starts_nothing(tmp_path: Path, demo_checkpoint: Path) -> None:
    checkpoint = Path(shutil.copytree(demo_checkpoint, tmp_path / "checkpoint"))
    first, *_, last = checkpoint_files(checkpoint)
    (checkpoint / first).unlink()
    with (checkpoint / last).open("r+b") as file:
        file.truncate((checkpoint / last).stat().st_size - 100)
    async with running_fleet(tmp_path, checkpoint, loopback=True, gateway=False) as fleet:
        up = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dsv41_supervisor", "up", "--settings", str(fleet.demo.settings_path),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, stderr = await asyncio.wait_for(up.communicate(), 60)
        text = stderr.decode()
        assert up.returncode == 78, text
        for node in fleet.settings.fleet.nodes:
            assert f"{node} rank" in text
        assert f"{checkpoint / first} cannot be read: No such file or directory." in text
        assert f"{checkpoint / last} is cut short" in text
        for status in (await fleet.status())["nodes"].values():
            assert status["rank"]["state"] == "absent"
            assert status["measured"]["n_processes"] == 0
