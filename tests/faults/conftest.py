"""The short run kills every process of the head and of one worker in every phase; `-m slow` adds the other worker."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" in (config.option.markexpr or ""):
        return
    skip = pytest.mark.skip(reason="a long leg; ask with -m slow")
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("slow"):
            item.add_marker(skip)
