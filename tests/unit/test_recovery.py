"""What follows after a loss: again after a growing pause, or down until a person says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from dsv41_supervisor.fleet import decisions as decisions_module
from dsv41_supervisor.fleet.decisions import Decisions
from dsv41_supervisor.fleet.recovery import Again, Stay, after_a_failed_boot, after_a_loss
from dsv41_supervisor.settings import Recovery

LIMITS = Recovery(max_recoveries=2, window_s=100, backoff_s=5)


def test_each_recovery_within_the_window_waits_twice_as_long() -> None:
    first = after_a_loss("why", (), 1000, False, LIMITS)
    assert first == Again(5, 1, (1000,))
    assert after_a_loss("why", first.recoveries, 1010, False, LIMITS) == Again(10, 2, (1000, 1010))


def test_the_limit_is_final_and_says_how_often_and_why() -> None:
    stay = after_a_loss("rank 1 died", (1000, 1010), 1020, False, LIMITS)
    assert stay == Stay("2 recoveries within 100 s did not hold; staying down. Last reason: rank 1 died", "up")


def test_recoveries_before_the_window_and_after_a_clock_that_was_set_back_do_not_count() -> None:
    assert after_a_loss("why", (100, 5000), 1000, False, LIMITS) == Again(5, 1, (1000,))


def test_a_pause_holds_until_it_is_over() -> None:
    assert after_a_loss("why", (), 1000, True, LIMITS) == Stay("recovery is paused, and why", "resume")


@pytest.mark.parametrize(("recovering", "transient"), [(False, True), (False, False), (True, False)])
def test_a_boot_that_never_worked_and_a_refusal_are_not_tried_again(recovering: bool, transient: bool) -> None:
    decision = after_a_failed_boot("why", recovering, transient, (), 1000, False, LIMITS)
    assert decision == Stay("the boot failed and is not tried again: why", "up")


def test_a_recovery_that_fails_for_something_that_passes_is_tried_again_within_the_limit() -> None:
    assert after_a_failed_boot("why", True, True, (990,), 1000, False, LIMITS) == Again(10, 2, (990, 1000))


def test_decisions_are_kept_in_order_over_a_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions_module, "MAX_BYTES", 2000)
    log = Decisions(tmp_path)
    for n in range(60):
        log.append(f"decision {n}", "because\nof this", generation=n)
    kept = [d["decision"] for d in log.last(10)]
    assert kept == [f"decision {n}" for n in range(50, 60)]
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 2 * 2000 + 500
    (tmp_path / "audit.log").open("a").write('{"torn')
    assert log.last(3)[-1]["decision"] == "decision 59"
