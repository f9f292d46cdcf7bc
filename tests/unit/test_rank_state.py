"""Legal moves of a rank."""

from __future__ import annotations

import pytest
from dsv41_supervisor.rank.state import IllegalMove, RankEvent, RankState, advance
from hypothesis import given
from hypothesis import strategies as st

ORDER = [RankEvent.STARTED, RankEvent.ADMITTED, RankEvent.LISTENING, RankEvent.ANSWERED, RankEvent.DRAIN]


def test_a_rank_goes_through_its_states_in_order() -> None:
    state, seen = RankState.ABSENT, []
    for event in ORDER:
        state = advance(state, event)
        seen.append(str(state))
    assert seen == ["checking", "loading", "warming", "ready", "draining"]


@pytest.mark.parametrize("state", list(RankState))
def test_any_rank_can_fail(state: RankState) -> None:
    assert advance(state, RankEvent.FAILED) is RankState.FAILED


def test_a_failure_is_not_hidden_by_stopping_the_rank_afterwards() -> None:
    assert advance(RankState.FAILED, RankEvent.STOPPED) is RankState.FAILED


@given(st.lists(st.sampled_from(list(RankEvent)), max_size=30))
def test_no_sequence_makes_a_rank_ready_that_did_not_answer(events: list[RankEvent]) -> None:
    state, answered = RankState.ABSENT, False
    for event in events:
        try:
            state = advance(state, event)
        except IllegalMove:
            continue
        answered = event is RankEvent.ANSWERED or (answered and event is not RankEvent.FORGOTTEN)
        if state is RankState.READY:
            assert answered
