"""A made-up engine source tree to fit against, and a rank plan to start from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def engine_tree(tmp_path: Path) -> Callable[[str], Path]:
    """Write `sglang/srt/part.py` with this text; gives the directory that holds `sglang/`."""

    def make(source: str) -> Path:
        package = tmp_path / "engine" / "sglang" / "srt"
        package.mkdir(parents=True, exist_ok=True)
        (package.parent / "__init__.py").write_text("raise AssertionError('imported')\n")
        (package / "part.py").write_text(source)
        return tmp_path / "engine"

    return make


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Path]:
    """Write a rank plan; gives its path. Keys given by name replace the defaults."""

    def make(**changes: object) -> Path:
        report_dir = tmp_path / "rank-0"
        report_dir.mkdir(exist_ok=True)
        document = {
            "format": 1,
            "node": "spark1",
            "rank": 0,
            "world_size": 3,
            "boot": "20261129T221500-4f1c9a2e",
            "report_dir": str(report_dir),
            "adapters": {"engram_nvme": {}},
            "rows": None,
            **changes,
        }
        path = report_dir / "plan.json"
        path.write_text(json.dumps(document))
        return path

    return make
