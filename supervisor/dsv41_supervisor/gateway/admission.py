"""Who goes to the engine next. Pure: events and times in, turns out.

The engine takes requests in the order in which they come, so whoever sends many long prompts at once makes
everybody wait. Here no more go to it than it runs together; some of those places are for short prompts alone,
and a free place goes to the key that has fewest; among equals, to the one that was served longest ago.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import chain

FIRST_GAP_S = 5.0
"""Seconds between two ends of requests, until some have been seen. Guess."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """How many may go, and how many may wait."""

    running: int = 1024
    reserved: int = 0
    """Of those running, places that only short prompts take."""
    reading_long: int = 1024
    """Long prompts of which no token has come yet: while the engine reads one, it reads nothing else."""
    short_tokens: int = 4096
    """Prompts up to this are short."""
    waiting: int = 256
    waiting_bytes: int = 64 << 20
    """Of waiting requests together; one may always wait. Parsed and encoded they take twice that."""

    @property
    def running_long(self) -> int:
        return self.running - self.reserved


@dataclass(slots=True, eq=False)
class Turn:
    """One request. `position`: how many were waiting when it came, itself included; 0: it never waited."""

    key: str
    short: bool
    n_bytes: int
    came_at: float
    number: int
    places: int = 1
    """Answers that it asks for; the engine runs each like a request of its own."""
    position: int = 0
    running: bool = False
    reading: bool = False
    """It runs, is long, and has not begun to answer."""
    waited_s: float = 0.0

    def headers(self) -> dict[str, str]:
        """Of a request that waited, or waits still."""
        waited = {"x-dsv41-waited-s": f"{self.waited_s:.3f}"} if self.running else {}
        return {"x-dsv41-queue-position": str(self.position)} | waited if self.position else {}


class Full(Exception):
    """No more may wait; says which bound is reached."""


@dataclass(slots=True)
class _Key:
    waiting: dict[bool, deque[Turn]] = field(default_factory=lambda: {True: deque(), False: deque()})
    """Short ones and long ones, each in the order in which they came."""
    running: int = 0
    served: int = 0
    """The number of its last turn granted."""

    @property
    def n_waiting(self) -> int:
        return len(self.waiting[True]) + len(self.waiting[False])


class Line:
    """All requests that run or wait. Whenever a method returns, nobody waits who might run."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.open = True
        """False while there is nothing to go to: everybody waits."""
        self.n_running = 0
        """Places, as the next."""
        self.n_running_long = 0
        self.n_reading_long = 0
        self.n_waiting = 0
        self.waiting_bytes = 0
        self._keys: dict[str, _Key] = {}
        """Kept when idle: a key that comes back at once must not pass for one that was never served."""
        self._numbers = 0
        self._granted = 0
        self._ends: deque[float] = deque(maxlen=16)
        self._wide: Turn | None = None
        """It is next, and waits for more places than are free: they are kept for it, or it would wait for ever."""

    def arrive(
        self, key: str, tokens: float, n_bytes: int, now: float, bound: int | None = None, places: int = 1
    ) -> tuple[Turn, Turn | None]:
        """A request that runs at once or waits, and the waiting one that had to give way to it; then call `grant`.

        `bound`: most that may wait now, when it is not the usual number. Raises Full.
        """
        self._numbers += 1
        short = tokens <= self.lanes.short_tokens
        most = self.lanes.running if short else self.lanes.running_long
        turn = Turn(key, short, n_bytes, now, self._numbers, max(1, min(places, most)))
        if self._fits(turn) and self._passes(turn):
            self._run(turn)
            return turn, None
        given_way, n_left, bytes_left = None, self.n_waiting, self.waiting_bytes
        if n_left >= (self.lanes.waiting if bound is None else bound):
            given_way = self._last_of_greediest(key)
            if given_way is None:
                raise Full(f"{n_left} requests wait already")
            n_left, bytes_left = n_left - 1, bytes_left - given_way.n_bytes
        if n_left and bytes_left + n_bytes > self.lanes.waiting_bytes:
            raise Full(f"the waiting requests hold {bytes_left >> 20} MiB already")
        if given_way is not None:
            self._forget(given_way)
        self._wait(turn)
        turn.position = self.n_waiting
        return turn, given_way

    def is_full(self, key: str, bound: int | None = None) -> bool:
        """Whether any request of this key would be sent away now."""
        return (
            not self._may_run(True)
            and self.n_waiting >= (self.lanes.waiting if bound is None else bound)
            and self._last_of_greediest(key) is None
        )

    def leave(self, turn: Turn, now: float) -> list[Turn]:
        """It has ended, or waits no longer. Gives the turns that may run now."""
        if turn.running:
            self._has_read(turn)
            turn.running = False
            self.n_running -= turn.places
            self.n_running_long -= 0 if turn.short else turn.places
            self._keys[turn.key].running -= turn.places
            self._ends.append(now)
        else:
            self._forget(turn)
        return self.grant()

    def begun(self, turn: Turn) -> list[Turn]:
        """Its answer has begun. Gives the turns that may run now."""
        return self.grant() if self._has_read(turn) else []

    def set_open(self, is_open: bool) -> list[Turn]:
        """Gives the turns that may run now."""
        self.open = is_open
        return self.grant()

    def grant(self) -> list[Turn]:
        """The turns that may run now."""
        granted: list[Turn] = []
        while self.n_waiting and (turn := self._next()) is not None:
            self._forget(turn)
            self._run(turn)
            granted.append(turn)
        return granted

    def waiting(self) -> list[Turn]:
        """In the order in which they came."""
        lanes = chain.from_iterable(key.waiting.values() for key in self._keys.values())
        return sorted(chain.from_iterable(lanes), key=lambda turn: turn.number)

    def estimated_wait_s(self) -> float:
        """For one who came now: its place in the line, times the seconds between the last ends."""
        gap_s = FIRST_GAP_S
        if len(self._ends) > 1:
            gap_s = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return min(600.0, max(1.0, gap_s * (self.n_waiting + 1)))

    # --- inside

    def _may_run(self, short: bool) -> bool:
        return (
            self.open
            and self.n_running < self.lanes.running
            and (
                short
                or (self.n_running_long < self.lanes.running_long and self.n_reading_long < self.lanes.reading_long)
            )
        )

    def _fits(self, turn: Turn) -> bool:
        more = turn.places - 1
        return (
            self._may_run(turn.short)
            and self.n_running + more < self.lanes.running
            and (turn.short or self.n_running_long + more < self.lanes.running_long)
        )

    def _passes(self, turn: Turn) -> bool:
        """Short ones pass a long one that needs many places, into those that it may not have anyway."""
        if self._wide is None:
            return True
        n_short = self.n_running - self.n_running_long
        return turn.short and not self._wide.short and n_short + turn.places <= self.lanes.reserved

    def _has_read(self, turn: Turn) -> bool:
        """Whether it was reading until now."""
        was, turn.reading = turn.reading, False
        self.n_reading_long -= was
        return was

    def _run(self, turn: Turn) -> None:
        key = self._keys.setdefault(turn.key, _Key())
        self._granted += 1
        key.running += turn.places
        key.served = self._granted
        turn.running = True
        turn.reading = not turn.short
        self.n_reading_long += turn.reading
        self.n_running += turn.places
        self.n_running_long += 0 if turn.short else turn.places

    def _wait(self, turn: Turn) -> None:
        lane = self._keys.setdefault(turn.key, _Key()).waiting[turn.short]
        lane.append(turn)
        self.n_waiting += 1
        self.waiting_bytes += turn.n_bytes

    def _forget(self, turn: Turn) -> None:
        key = self._keys.get(turn.key)
        if key is None or turn not in key.waiting[turn.short]:
            return
        key.waiting[turn.short].remove(turn)
        self.n_waiting -= 1
        self.waiting_bytes -= turn.n_bytes
        if turn is self._wide:
            self._wide = None

    def _last_of_greediest(self, arriving: str) -> Turn | None:
        """The newest waiting turn of the key with most, if that is more than the arriving key would have."""
        counts = Counter({name: key.n_waiting for name, key in self._keys.items()})
        if not counts:
            return None
        name, most = counts.most_common(1)[0]
        if most <= counts[arriving] + 1:
            return None
        return max(chain.from_iterable(self._keys[name].waiting.values()), key=lambda turn: turn.number)

    def _next(self) -> Turn | None:
        self._wide = None
        turn = self._best((True, False))
        if turn is None or self._fits(turn):
            return turn
        self._wide = turn
        turn = self._best((True,))
        return turn if turn is not None and self._fits(turn) and self._passes(turn) else None

    def _best(self, of: tuple[bool, ...]) -> Turn | None:
        """Who is next among short ones, long ones or both, if there is a place at all."""
        lanes = [short for short in of if self._may_run(short)]
        best: tuple[tuple[int, int], Turn] | None = None
        for key in self._keys.values():
            heads = [key.waiting[short][0] for short in lanes if key.waiting[short]]
            if heads:
                rank = (key.running, key.served)
                if best is None or rank < best[0]:
                    best = rank, min(heads, key=lambda turn: turn.number)
        return best[1] if best is not None else None
