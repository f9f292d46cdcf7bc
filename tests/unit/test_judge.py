"""Why a boot cannot go on, read from the nodes' statuses alone."""

from __future__ import annotations

import json
from typing import Any

from dsv41_supervisor.fleet.judge import Seen
from dsv41_supervisor.settings import parse

from tests.unit.fleets import good

FLEET = parse(json.dumps(good())).fleet
NODES = ("spark1", "spark2", "spark3")
LIVES = dict.fromkeys(NODES, "first")


def status(**changed: Any) -> dict[str, Any]:
    """A node whose checks passed in boot b and whose rank loads."""
    return {
        "stamp": "first.1000", "boot": {"id": "b"}, "prepare": {"boot": "b", "state": "passed", "refusals": []},
        "rank": {"state": "loading", "reason": None, "last_lines": [], "refused": False},
    } | changed  # fmt: skip


FORGOTTEN = {"stamp": "second.5", "boot": None, "prepare": {"boot": None, "state": "idle", "refusals": []}}
FAILED = {"state": "failed", "reason": "killed by signal 9", "last_lines": [], "refused": False}


def said(statuses: dict[str, dict[str, Any]], granted: tuple[str, ...] = NODES) -> list[str]:
    seen = Seen(FLEET, statuses, dict.fromkeys(NODES, 0.0))
    return [f"{r.node}: {r.what}" for r in seen.failures("b", granted, LIVES)]


def test_a_supervisor_that_came_back_without_the_boot_ends_it() -> None:
    here = status()
    sentence = "its supervisor was restarted while the fleet was starting: it is not in boot b any more."
    assert said({"spark1": here, "spark2": here, "spark3": status(**FORGOTTEN)}) == [f"spark3: {sentence}"]


def test_one_that_was_restarted_before_it_said_that_it_holds_the_lease_ends_it_too() -> None:
    here = status()
    statuses = {"spark1": here, "spark2": here, "spark3": status(**FORGOTTEN)}
    assert len(said(statuses, granted=("spark1", "spark2"))) == 1


def test_a_node_that_has_not_taken_the_lease_yet_is_waited_for() -> None:
    late = status(boot=None, prepare={"boot": None, "state": "idle", "refusals": []})
    assert said({"spark1": status(rank=FAILED), "spark2": late, "spark3": late}, granted=("spark1",)) == []


def test_a_supervisor_that_was_restarted_beside_its_rank_hides_no_other_failure() -> None:
    beside = status(stamp="second.5", prepare={"boot": None, "state": "idle", "refusals": []})
    statuses = {"spark1": status(), "spark2": status(rank=FAILED), "spark3": beside}
    assert said(statuses) == ["spark2: killed by signal 9."]
    assert said(statuses | {"spark2": status()}) == []


def test_a_lease_that_was_ended_is_told_apart_from_a_restart() -> None:
    ended = status(boot=None, prepare={"boot": None, "state": "idle", "refusals": []})
    assert said({"spark1": status(), "spark2": status(), "spark3": ended}) == [
        "spark3: its lease was ended while the fleet was starting: it is not in boot b any more."
    ]
