"""Fault: a rank's scheduler is killed (as the OOM killer does) in each phase of loading.

What the user sees: `dsv41 up` ends with that rank's name and last lines; nothing is tried again, nothing is left.
What the operator sees: `the boot failed: …` in the head's journal, and the reason in the audit log.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.fleet import running_fleet


@pytest.mark.parametrize(("rank", "phase"), [(1, "starting"), (2, "weights"), (0, "weights"), (0, "pools")])
async def test_a_boot_that_never_worked_is_not_tried_again(
    tmp_path: Path, demo_checkpoint: Path, rank: int, phase: str
) -> None:
    behaviour = {"ranks": {str(rank): {"die_at": phase}}}
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False, behaviour=behaviour) as fleet:
        status = await fleet.up()
        assert status["state"] == "failed"
        assert status["wanted"] == "down"
        assert {r["rank"] for r in status["refusals"]} >= {rank}
        said = " ".join(r["what"] for r in status["refusals"] if r["rank"] == rank)
        assert "died" in said or "ended" in said
        assert "It last said: " in said
        for node in status["nodes"].values():
            assert node["measured"]["n_processes"] == 0, node["node"]
        fleet.script({})
        assert (await fleet.up())["state"] == "serving"
