"""What the engine's processes report about their adapters, written without them: the scripted engine changes nothing.

Reads the rank's plan (DSV41_RANK_PLAN) and writes `armed-<role>-<pid>.json` as the adapters' own reports are.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


def report(role: str, refused: str | None = None) -> None:
    """Every adapter of the plan is armed, or refused for this reason. Does nothing without a plan."""
    name = os.environ.get("DSV41_RANK_PLAN")
    if not name:
        return
    plan = json.loads(Path(name).read_text())
    state = {"state": "refused" if refused else "armed", "reason": refused, "targets": []}
    adapters = {adapter: state for adapter in plan["adapters"]}
    text = json.dumps(
        {
            "format": 1,
            "boot": plan["boot"],
            "pid": os.getpid(),
            "role": role,
            "rank": plan["rank"],
            "adapters": adapters,
        }
    )
    directory = Path(plan["report_dir"])
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".armed-{role}-{os.getpid()}.tmp"
    temporary.write_text(text)
    temporary.replace(directory / f"armed-{role}-{os.getpid()}.json")
