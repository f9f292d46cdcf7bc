"""One boot is one lease: no message of another boot starts or keeps a rank."""

from __future__ import annotations

import pytest
from dsv41_supervisor.fleet.lease import LeaseBook, StaleBoot
from dsv41_supervisor.rank.plan import Boot
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

TTL_S = 10.0


def boot(generation: int, name: str = "boot") -> Boot:
    return Boot(f"{name}-{generation}", generation, 20000 + generation)


def test_a_granted_lease_lives_until_it_runs_out() -> None:
    book = LeaseBook().grant(boot(1), now_s=0, ttl_s=TTL_S)
    assert book.live(9.9) == boot(1)
    assert book.live(10.0) is None
    assert book.left_s(4) == 6


def test_renewing_never_makes_a_lease_shorter() -> None:
    book = LeaseBook().grant(boot(1), 0, TTL_S).renew("boot-1", 1, 2)
    assert book.left_s(1) == 9


def test_a_lease_that_ran_out_cannot_be_renewed() -> None:
    book = LeaseBook().grant(boot(1), 0, TTL_S)
    with pytest.raises(StaleBoot, match=r"ran out 1\.0 s ago"):
        book.renew("boot-1", 11, TTL_S)


def test_a_delayed_message_of_an_older_boot_is_refused_and_named() -> None:
    book = LeaseBook().grant(boot(5), 0, TTL_S).drop()
    with pytest.raises(StaleBoot, match="boot-4 has generation 4, but this node has seen 5"):
        book.grant(boot(4), 1, TTL_S)


def test_two_heads_cannot_both_hold_one_generation() -> None:
    book = LeaseBook().grant(boot(3, "head-a"), 0, TTL_S)
    with pytest.raises(StaleBoot):
        book.grant(boot(3, "head-b"), 1, TTL_S)
    with pytest.raises(StaleBoot):
        book.renew("head-b-3", 1, TTL_S)


class LeaseMachine(RuleBasedStateMachine):
    """Grants, renewals and drops in any order, delayed or repeated, with a clock that only goes forward."""

    def __init__(self) -> None:
        super().__init__()
        self.book = LeaseBook()
        self.now_s = 0.0
        self.seen = 0
        self.history: list[int] = []

    @rule(seconds=st.floats(0, 30))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(generation=st.integers(1, 20))
    def grant(self, generation: int) -> None:
        try:
            self.book = self.book.grant(boot(generation), self.now_s, TTL_S)
        except StaleBoot:
            assert generation <= self.seen
        else:
            self.seen = max(self.seen, generation)
            self.history.append(generation)

    @rule(generation=st.integers(1, 20))
    def renew(self, generation: int) -> None:
        live = self.book.live(self.now_s)
        try:
            self.book = self.book.renew(f"boot-{generation}", self.now_s, TTL_S)
        except StaleBoot:
            assert live is None or live.generation != generation
        else:
            assert live == boot(generation)

    @rule()
    def drop(self) -> None:
        self.book = self.book.drop()

    @invariant()
    def generations_never_go_back(self) -> None:
        assert self.history == sorted(self.history)
        assert self.book.highest_generation == self.seen

    @invariant()
    def only_the_newest_boot_is_ever_live(self) -> None:
        live = self.book.live(self.now_s)
        assert live is None or live.generation == self.seen


TestLease = LeaseMachine.TestCase
TestLease.settings = hypothesis_settings(max_examples=200, stateful_step_count=40, deadline=None)
