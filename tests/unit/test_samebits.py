"""A mixture of ranks is refused with both values named."""

from __future__ import annotations

from dsv41_supervisor.fleet.samebits import differences


def test_equal_ranks_pass() -> None:
    same = {"settings hash": "a" * 64, "kernel": "6.17"}
    assert differences({"spark1": {"same": same}, "spark2": {"same": dict(same)}}) == []


def test_a_difference_names_the_values_and_their_nodes() -> None:
    statuses = {
        "spark1": {"same": {"settings hash": "a" * 64, "kernel": "6.17"}},
        "spark2": {"same": {"settings hash": "b" * 64, "kernel": "6.17"}},
        "spark3": {"same": {"settings hash": "a" * 64, "kernel": "6.17"}},
    }
    (refusal,) = differences(statuses)
    assert f"{'a' * 16} on spark1, spark3; {'b' * 16} on spark2." in refusal.what
    assert "settings hash" in refusal.what


def test_a_fact_that_one_rank_does_not_know_is_a_difference() -> None:
    (refusal,) = differences({"spark1": {"same": {"libnccl": "2.30"}}, "spark2": {"same": {}}})
    assert "unknown on spark2" in refusal.what
