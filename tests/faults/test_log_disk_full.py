"""Fault: the drive that holds the rank's log is full while the fleet serves.

What the user sees: nothing; answers go on. What the operator sees: `the log cannot be written …` among the rank's last
lines; the engine's pipe is still read, so no token waits for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

from dsv41_supervisor.rank.plan import LaunchPlan
from dsv41_supervisor.rank.process import _Running


async def test_the_engine_is_read_on_when_its_log_cannot_be_written(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    settings = SimpleNamespace(supervisor=SimpleNamespace(lease_ttl_s=20))
    plan = LaunchPlan(0, (sys.executable,), {}, Path("/nowhere/plan.json"), {"boot": "b"})
    running = _Running(settings, None, plan, asyncio.Event())  # type: ignore[arg-type]
    # /dev/full answers every write with ENOSPC, as a full drive does.
    full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=full))
    loud = "for i in range(40000): print('a line of an engine that writes a lot', i)"
    engine = await asyncio.create_subprocess_exec(sys.executable, "-c", loud, stdout=asyncio.subprocess.PIPE)
    try:
        await asyncio.wait_for(running._read(engine), 30)
        assert await asyncio.wait_for(engine.wait(), 10) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            engine.kill()
        full.close()
    assert "a line of an engine that writes a lot 39999" in running._last_lines[-1]


def test_dev_full_is_what_the_test_thinks_it_is() -> None:
    assert Path("/dev/full").is_char_device()
