"""The rank's plan as the engine's processes read it. Written by the supervisor (`rank/plan.py`), named by the
environment variable `DSV41_RANK_PLAN`; without that variable the plugin does nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLAN_VARIABLE = "DSV41_RANK_PLAN"
FORMAT = 1


class PlanUnreadable(Exception):
    """The plan file is missing or is not a plan; the message names it and says what to do next."""


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """Where this rank's packed rows are and how they are read."""

    directory: str
    partition: str
    revision: str | None
    cache_bytes: int
    ways: int
    engine: str


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """The model on this node's disk."""

    path: str
    revision: str


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank was started as."""

    node: str
    rank: int
    world_size: int
    boot: str
    report_dir: Path
    adapters: dict[str, Any]
    """Settings of each adapter asked for; one that is not here is off."""
    rows: RowsPlan | None
    checkpoint: CheckpointPlan | None = None
    launch: str | None = None
    """Fingerprint of what chooses kernels: equal on all ranks and over boots of one configuration."""


def read_plan(path: Path) -> RankPlan:
    """Raises PlanUnreadable."""
    try:
        raw = json.loads(path.read_bytes())
        if raw["format"] != FORMAT:
            raise ValueError(f"format {raw['format']}, expected {FORMAT}")
        rows = None if raw["rows"] is None else RowsPlan(**raw["rows"])
        model, launch = raw.get("checkpoint"), raw.get("launch")
        plan = RankPlan(
            node=str(raw["node"]),
            rank=int(raw["rank"]),
            world_size=int(raw["world_size"]),
            boot=str(raw["boot"]),
            report_dir=Path(raw["report_dir"]),
            adapters=dict(raw["adapters"]),
            rows=rows,
            checkpoint=None if model is None else CheckpointPlan(**model),
            launch=None if launch is None else str(launch),
        )
    except OSError as error:
        raise PlanUnreadable(
            f"{PLAN_VARIABLE} names {path}, which cannot be read ({error.strerror}). Start the rank with `dsv41 rank`."
        ) from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise PlanUnreadable(
            f"{PLAN_VARIABLE} names {path}, which is not a rank plan ({error!r}). "
            "Supervisor and adapters must be of one version."
        ) from error
    return plan
