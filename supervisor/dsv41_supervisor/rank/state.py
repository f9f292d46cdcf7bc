"""RankState and its legal moves. Pure: no clock, no I/O."""

from __future__ import annotations

from enum import StrEnum


class RankState(StrEnum):
    """Where one rank stands. All ranks of a fleet serve together: one that failed fails the whole boot."""

    ABSENT = "absent"
    """No unit, no process, nothing asked for."""
    CHECKING = "checking"
    """The unit was started and waits to be admitted."""
    LOADING = "loading"
    """The engine runs: imports, rendezvous, weights, pools, graphs."""
    WARMING = "warming"
    """The engine listens; the first real token has not come back yet."""
    READY = "ready"
    """May be sent work."""
    DRAINING = "draining"
    """Finishes what runs, takes nothing new."""
    STOPPED = "stopped"
    """Ended because it was asked to."""
    FAILED = "failed"
    """Ended, froze or was refused without being asked to; the reason is kept."""


class RankEvent(StrEnum):
    """What can happen to a rank."""

    STARTED = "started"
    ADMITTED = "admitted"
    LISTENING = "listening"
    ANSWERED = "answered"
    DRAIN = "drain"
    STOPPED = "stopped"
    FAILED = "failed"
    FORGOTTEN = "forgotten"


_MOVES: dict[tuple[RankState, RankEvent], RankState] = {
    (RankState.ABSENT, RankEvent.STARTED): RankState.CHECKING,
    (RankState.CHECKING, RankEvent.ADMITTED): RankState.LOADING,
    (RankState.LOADING, RankEvent.LISTENING): RankState.WARMING,
    (RankState.WARMING, RankEvent.ANSWERED): RankState.READY,
    (RankState.READY, RankEvent.DRAIN): RankState.DRAINING,
    (RankState.STOPPED, RankEvent.FORGOTTEN): RankState.ABSENT,
    (RankState.FAILED, RankEvent.FORGOTTEN): RankState.ABSENT,
    # A rank that failed is stopped too (its unit may still run); the failure stays what is told.
    (RankState.FAILED, RankEvent.STOPPED): RankState.FAILED,
}
_ENDED = (RankState.ABSENT, RankState.STOPPED, RankState.FAILED)


class IllegalMove(ValueError):
    """An event that cannot happen in this state: a bug in the caller."""


def advance(state: RankState, event: RankEvent) -> RankState:
    """The state after an event. Raises IllegalMove."""
    if (state, event) in _MOVES:
        return _MOVES[state, event]
    if event is RankEvent.FAILED:
        return RankState.FAILED
    if event is RankEvent.STOPPED and state not in _ENDED:
        return RankState.STOPPED
    raise IllegalMove(f"a rank that is {state} cannot be {event}")
