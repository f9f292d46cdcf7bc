"""limits.py: what a key may use and uses, by a clock that the test moves. No I/O."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dsv41_supervisor.gateway.limits import NO_LIMITS, KeyLimits, Meter, parse_options
from dsv41_supervisor.gateway.policy import Limits
from hypothesis import given, settings
from hypothesis import strategies as st

FLEET = Limits("m", context_length=262144, max_tokens_cap=32768)
limits = st.builds(
    KeyLimits,
    requests=st.none() | st.integers(1, 50),
    tokens_per_minute=st.none() | st.integers(1, 10**6),
    max_tokens=st.none() | st.integers(1, 10**6),
    effort=st.none() | st.just("none") | st.integers(1, 100),
    models=st.none() | st.frozensets(st.sampled_from(["a", "b-1", "c.d"]), min_size=1),
)


@settings(deadline=None)
@given(limits)
def test_options_read_back_as_they_were_written(of_a_key: KeyLimits) -> None:
    assert parse_options(of_a_key.words()) == of_a_key


@settings(deadline=None)
@given(st.lists(st.text(max_size=40), max_size=4))
def test_no_refusal_of_options_holds_what_was_written(words: list[str]) -> None:
    secret = "SECRET-0123456789"
    for spoilt in ([*words, secret], [*words, f"requests={secret}"], [*words, f"{secret}=3"]):
        with pytest.raises(ValueError) as refused:
            parse_options(spoilt)
        assert secret not in str(refused.value)


@pytest.mark.parametrize(
    ("of_a_key", "cap", "ceiling", "effort"),
    [
        (KeyLimits(), 32768, 32768, None),
        (KeyLimits(max_tokens=100), 32768, 100, None),
        (KeyLimits(max_tokens=99999), 32768, 32768, None),
        (KeyLimits(max_tokens=100), 0, 100, None),
        (KeyLimits(effort=50), 0, None, 50),
        (KeyLimits(effort="none"), 0, None, "none"),
    ],
)
def test_a_key_narrows_what_the_fleet_allows_and_never_widens_it(
    of_a_key: KeyLimits, cap: int, ceiling: int | None, effort: int | str | None
) -> None:
    narrowed = of_a_key.narrow(replace(FLEET, max_tokens_cap=cap))
    assert (narrowed.ceiling, narrowed.default_effort) == (ceiling, effort)


def test_requests_in_flight_are_counted_in_and_out() -> None:
    meter, two = Meter(), KeyLimits(requests=2)
    assert meter.enter(two, 0) is None and meter.enter(two, 0) is None
    exceeded = meter.enter(two, 0)
    assert exceeded is not None and (exceeded.limit, exceeded.allowed) == ("requests", 2)
    meter.leave()
    assert meter.enter(two, 0) is None
    # A limit that was lowered while requests run: those go on, new ones wait for room.
    assert meter.enter(KeyLimits(requests=1), 0) is not None


def test_a_minutes_tokens_can_be_used_at_once_and_come_back_steadily() -> None:
    meter, limit = Meter(), KeyLimits(tokens_per_minute=600)
    assert meter.enter(limit, 100.0) is None
    meter.charge(limit, 900, 100.0)
    exceeded = meter.enter(limit, 110.0)  # 100 forgiven: 200 over
    assert exceeded is not None and exceeded.limit == "tokens_per_minute"
    assert exceeded.retry_after_s == pytest.approx(20.1)
    assert meter.enter(limit, 110.0 + exceeded.retry_after_s) is None
    assert meter.enter(limit, 10**6) is None and meter.owed_tokens == 0


def test_an_estimate_that_was_too_high_is_given_back() -> None:
    meter, limit = Meter(), KeyLimits(tokens_per_minute=600)
    meter.charge(limit, 10_000, 0)
    assert meter.enter(limit, 0) is not None
    meter.charge(limit, -9_900, 0)
    assert meter.enter(limit, 0) is None and meter.owed_tokens == 100


@settings(deadline=None)
@given(
    st.integers(1, 100_000),
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 200_000)), min_size=1, max_size=40),
)
def test_over_any_time_a_key_uses_its_rate_and_one_minute_and_its_last_request(
    per_minute: int, asked: list[tuple[float, int]]
) -> None:
    meter, limit, now, used, last = Meter(), KeyLimits(tokens_per_minute=per_minute), 0.0, 0, 0
    for after_s, tokens in asked:
        now += after_s
        exceeded = meter.enter(limit, now)
        if exceeded is None:
            meter.charge(limit, tokens, now)
            used, last = used + tokens, tokens
        else:
            # What is promised holds: there is room then.
            assert replace(meter).enter(limit, now + exceeded.retry_after_s + 1e-3) is None
    assert used - last <= per_minute * (1 + now / 60) + 1e-3 * max(1, used)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["enter", "leave"]), max_size=60), st.integers(1, 5))
def test_requests_in_flight_never_exceed_their_limit(steps: list[str], allowed: int) -> None:
    meter, limit, inside = Meter(), KeyLimits(requests=allowed), 0
    for step in steps:
        if step == "enter":
            inside += meter.enter(limit, 0.0) is None
        elif inside:
            meter.leave()
            inside -= 1
        assert meter.in_flight == inside <= allowed


def test_a_key_without_limits_is_never_refused_and_owes_nothing() -> None:
    meter = Meter()
    for _ in range(1000):
        assert meter.enter(NO_LIMITS, 0.0) is None
        meter.charge(NO_LIMITS, 10**9, 0.0)
    assert meter.owed_tokens == 0 and meter.in_flight == 1000
