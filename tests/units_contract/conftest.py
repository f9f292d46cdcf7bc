from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from bench import Bench, SystemdBench


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = SystemdBench(tmp_path) if os.environ.get("DSV41_UNITS") == "systemd" else Bench(tmp_path)
    yield bench
    await bench.close()
