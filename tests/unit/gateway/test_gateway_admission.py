"""admission.py: who goes to the engine next, against a model of what was promised. No I/O."""

from __future__ import annotations

from collections import Counter

import pytest
from dsv41_supervisor.gateway.admission import Full, Lanes, Line, Turn
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

SHORT, LONG = 10.0, 10_000.0


def come(line: Line, key: str, tokens: float = SHORT, places: int = 1) -> Turn:
    turn = line.arrive(key, tokens, 100, 0.0, places=places)[0]
    line.grant()
    return turn


def test_a_reserved_place_is_for_short_prompts_alone() -> None:
    line = Line(Lanes(running=3, reserved=1))
    longs = [come(line, "me", LONG) for _ in range(4)]
    assert [turn.running for turn in longs] == [True, True, False, False]
    assert come(line, "me").running, "a short one waits behind long ones"
    last = come(line, "me")
    assert not last.running and last.position == 3
    assert line.leave(longs[0], 1.0) == [longs[2]]  # the oldest that may run


def test_one_long_prompt_is_read_at_a_time_and_short_ones_pass() -> None:
    line = Line(Lanes(running=8, reading_long=1))
    first, second, third = (come(line, "me", LONG) for _ in range(3))
    assert (first.running, second.running) == (True, False)
    assert come(line, "me").running
    assert line.begun(first) == [second] and first.running
    assert line.begun(first) == []  # said once more, as at every chunk
    assert line.leave(second, 0.0) == [third]  # gone before it began


def test_short_ones_take_every_place_but_the_oldest_goes_first() -> None:
    line = Line(Lanes(running=2, reserved=1))
    first, second = come(line, "me"), come(line, "me")
    long, third = come(line, "me", LONG), come(line, "me")
    assert line.leave(first, 0.0) == [long] and line.leave(second, 0.0) == [third]


def test_places_are_shared_between_keys_and_not_by_how_much_is_sent() -> None:
    line = Line(Lanes(running=1))
    running = come(line, "busy")
    [come(line, "busy") for _ in range(10)]
    [come(line, "rare") for _ in range(2)]
    served = []
    for _ in range(6):
        (running,) = line.leave(running, 0.0)
        served.append(running.key)
    assert served == ["rare", "busy", "rare", "busy", "busy", "busy"]


def test_a_key_with_fewer_running_goes_first_and_equal_ones_take_turns() -> None:
    line = Line(Lanes(running=3))
    running = [come(line, "busy") for _ in range(3)]
    [come(line, "busy") for _ in range(3)]
    [come(line, "rare") for _ in range(3)]
    assert [line.leave(turn, 0.0)[0].key for turn in running] == ["rare", "busy", "rare"]


def test_keys_that_come_back_at_once_do_not_starve_one_that_waits() -> None:
    line = Line(Lanes(running=1))
    running = come(line, "a")
    come(line, "patient")
    come(line, "b")
    come(line, "c")
    served = []
    for _ in range(8):
        (following,) = line.leave(running, 0.0)
        come(line, running.key)
        running = following
        served.append(running.key)
    assert served.count("patient") >= 2


def test_a_full_line_refuses_the_key_that_fills_it_and_not_the_others() -> None:
    line = Line(Lanes(running=1, waiting=4))
    come(line, "busy")
    queued = [come(line, "busy") for _ in range(4)]
    with pytest.raises(Full, match="4 requests wait already"):
        come(line, "busy")
    turn, given_way = line.arrive("rare", SHORT, 100, 0.0)
    assert given_way is queued[-1] and turn in line.waiting() and given_way not in line.waiting()
    assert line.arrive("rare", SHORT, 100, 0.0)[1] is queued[-2]
    with pytest.raises(Full):
        come(line, "rare")  # two each: nobody is greedier than it would be


def test_waiting_bodies_are_bounded_but_one_may_always_wait() -> None:
    line = Line(Lanes(running=1, waiting_bytes=1 << 20))
    come(line, "a")
    line.arrive("a", SHORT, 64 << 20, 0.0)
    with pytest.raises(Full, match="64 MiB"):
        line.arrive("b", SHORT, 1, 0.0)


def test_the_estimate_of_the_wait_is_the_places_before_times_the_pace() -> None:
    line = Line(Lanes(running=1))
    turn = come(line, "a")
    for _ in range(9):
        come(line, "a")
    assert line.estimated_wait_s() == 50
    for now in (10.0, 12.0, 14.0):
        (turn,) = line.leave(turn, now)
    assert line.estimated_wait_s() == 14  # six wait, one in two seconds


def test_a_request_for_many_answers_takes_as_many_places() -> None:
    line = Line(Lanes(running=4, reserved=1))
    wide, narrow = come(line, "me", LONG, places=3), come(line, "me", LONG)
    assert wide.running and line.n_running == line.n_running_long == 3 and not narrow.running
    short = come(line, "me")
    assert short.running, "the reserved place is free"
    assert line.leave(wide, 1.0) == [narrow] and line.leave(short, 2.0) == [] and line.n_running == 1


def test_more_answers_than_there_are_places_take_all_of_them() -> None:
    line = Line(Lanes(running=4, reserved=1))
    assert come(line, "me", LONG, places=99).places == 3
    line = Line(Lanes(running=4, reserved=1))
    assert come(line, "me", SHORT, places=99).places == 4 and line.n_running == 4


def test_free_places_are_kept_for_a_request_that_needs_many_or_it_would_wait_for_ever() -> None:
    line = Line(Lanes(running=3))
    running = [come(line, "me") for _ in range(2)]
    wide, later = come(line, "me", places=3), come(line, "me")
    assert not wide.running and not later.running and line.n_running == 2
    assert line.leave(running[0], 1.0) == [] and line.leave(running[1], 2.0) == [wide]
    assert line.leave(wide, 3.0) == [later]


def test_places_that_were_kept_go_round_when_who_waits_for_them_leaves_or_gives_way() -> None:
    line = Line(Lanes(running=3, waiting=3))
    come(line, "me"), come(line, "me")
    wide, later = come(line, "me", places=2), come(line, "me")
    assert line.leave(wide, 1.0) == [later]
    line.leave(later, 1.0)
    first, wide = come(line, "me", places=2), come(line, "me", LONG, places=2)
    third = come(line, "me")
    assert not any(turn.running for turn in (first, wide, third)) and line.n_waiting == 3
    turn, given_way = line.arrive("rare", SHORT, 100, 2.0)
    assert given_way is third and line.grant() == [turn], "the key with fewest goes before the one that needs two"


def test_short_ones_pass_a_long_one_that_needs_many_places_into_the_reserved_ones_alone() -> None:
    line = Line(Lanes(running=5, reserved=2))
    come(line, "me", LONG)
    wide = come(line, "me", LONG, places=3)
    shorts = [come(line, "me") for _ in range(3)]
    assert [turn.running for turn in shorts] == [True, True, False] and not wide.running


def test_a_line_is_full_for_the_key_that_fills_it_alone() -> None:
    line = Line(Lanes(running=1, waiting=2))
    come(line, "busy")
    assert not line.is_full("busy")
    come(line, "busy"), come(line, "busy")
    assert line.is_full("busy") and not line.is_full("rare") and not line.is_full("busy", bound=3)


class AnyOrder(RuleBasedStateMachine):
    """Requests come and go in any order, and the engine with them."""

    @initialize(running=st.integers(1, 4), reserved=st.integers(0, 3), reading=st.integers(1, 4),
                waiting=st.integers(0, 6))  # fmt: skip
    def begin(self, running: int, reserved: int, reading: int, waiting: int) -> None:
        self.line = Line(Lanes(running, min(reserved, running - 1), reading, short_tokens=100, waiting=waiting))
        self.here: list[Turn] = []
        self.gone: list[Turn] = []
        self.now = 0.0

    @rule(key=st.sampled_from("abc"), long=st.booleans(), n_bytes=st.integers(1, 1 << 20),
          places=st.sampled_from((1, 1, 1, 2, 3, 9)))  # fmt: skip
    def arrive(self, key: str, long: bool, n_bytes: int, places: int) -> None:
        would_be_full = self.line.is_full(key)
        before = Counter(turn.key for turn in self.line.waiting())
        try:
            turn, given_way = self.line.arrive(key, 101 if long else 100, n_bytes, self.now, places=places)
        except Full:
            assert sum(before.values()) == self.line.lanes.waiting
            assert all(n <= before[key] + 1 for n in before.values())
            return
        assert not would_be_full
        self.here.append(turn)
        assert all(granted in self.here for granted in self.line.grant())
        if given_way is not None:
            self.here.remove(given_way)
            assert before[given_way.key] > before[key] + 1

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.here:
            turn = data.draw(st.sampled_from(self.here))
            self.here.remove(turn)
            self.gone.append(turn)
            self.now += 1
            granted = self.line.leave(turn, self.now)
            assert all(turn.running and turn in self.here for turn in granted)

    @rule(data=st.data())
    def begin_to_answer(self, data: st.DataObject) -> None:
        running = [turn for turn in self.here if turn.running]
        if running:
            turn = data.draw(st.sampled_from(running))
            assert all(granted in self.here for granted in self.line.begun(turn))
            assert not turn.reading

    @rule()
    def leave_twice(self) -> None:
        """As when a client goes in the moment in which its turn gave way."""
        if self.gone:
            assert self.line.leave(self.gone[-1], self.now) == []

    @rule(is_open=st.booleans())
    def set_open(self, is_open: bool) -> None:
        for turn in self.line.set_open(is_open):
            assert is_open and turn in self.here

    @invariant()
    def counts_hold_and_nobody_waits_in_vain(self) -> None:
        if not hasattr(self, "line"):
            return
        line, lanes = self.line, self.line.lanes
        running = [turn for turn in self.here if turn.running]
        waiting = [turn for turn in self.here if not turn.running]
        assert line.waiting() == waiting  # in order
        n_running = sum(turn.places for turn in running)
        assert (line.n_running, line.n_waiting) == (n_running, len(waiting))
        assert line.waiting_bytes == sum(turn.n_bytes for turn in waiting)
        n_long = sum(turn.places for turn in running if not turn.short)
        n_reading = sum(turn.reading for turn in self.here)
        assert line.n_reading_long == n_reading <= min(n_long, lanes.reading_long)
        assert line.n_running_long == n_long <= lanes.running_long and n_running <= lanes.running
        assert len(waiting) <= lanes.waiting
        wide = [turn for turn in waiting if turn.places > 1]
        if line.open and n_running < lanes.running and not wide:
            assert not any(turn.short for turn in waiting)
            assert not waiting or lanes.running_long == n_long or n_reading == lanes.reading_long
        if line.open and not running:
            assert not waiting, "nobody may wait at an engine that does nothing"


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(deadline=None, max_examples=100)
