from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parents[2] / "units_contract"))

from bench import SystemdBench


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SystemdBench]:
    bench = SystemdBench(tmp_path)
    yield bench
    await bench.close()
