"""Where requests wait: for their turn at the engine, and over a recovery if the operator wants that."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from .admission import Full, Lanes, Line, Turn
from .answers import Failure, not_ready
from .readiness import Readiness
from .refuse import Refuse

_READS_TOKENS_PER_S = 4000
"""For answers in one piece, which do not show when the prompt has been read. Source: 3.9k to 4.9k tokens/s on real
text, published for four Sparks; never measured here."""

_PASSES = frozenset({"starting", "recovering", "unknown"})
"""States that end by themselves; `unknown`: the supervisor is silent, or has just been started."""
_STOPPING = not_ready("The gateway is stopping. Try again in 10 s.", 10.0)

Alive = Callable[[Turn], Awaitable[None]]
"""Tells a client that its request still waits. What it raises ends the wait."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long requests wait. `hold_s` 0: while the fleet does not serve, none does."""

    queue_s: float = 300.0
    hold_s: float = 0.0
    hold_requests: int = 64


@dataclass(slots=True)
class Waits:
    """What happened to those who waited."""

    ended: Counter[str] = field(default_factory=Counter)
    """served, gone (the client left), timeout, refused (the fleet went away), full, gave_way."""
    seconds: float = 0.0
    """That those waited who were served."""


class _Waiter:
    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.limit = asyncio.timeout(None)

    def wait_at_most(self, seconds: float) -> None:
        if not self.limit.expired():  # or it is on its way out already
            self.limit.reschedule(asyncio.get_running_loop().time() + seconds)

    def refuse(self, failure: Failure) -> None:
        if not self.called.done():
            self.called.set_exception(Refuse(failure))


class Place:
    """A request's place at the engine, if it waits for one; given back at the end of the block."""

    def __init__(self, lobby: Lobby, key: str) -> None:
        self._lobby = lobby
        self._key = key
        self._turn: Turn | None = None
        self._tokens = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, tokens: float, n_bytes: int, alive: Alive | None = None, places: int = 1) -> Turn:
        """Returns when the engine is ready and it is this request's turn. Raises Refuse, and what `alive` raises."""
        self._tokens = tokens
        self._turn = await self._lobby.enter(self._key, tokens, n_bytes, alive, places)
        return self._turn

    def begun(self) -> None:
        """The answer has begun: the engine has read the prompt."""
        if self._turn is not None and self._turn.reading:
            self._lobby.begun(self._turn)

    def begins_unseen(self) -> None:
        """The answer comes in one piece: the prompt counts as read after a while."""
        if self._turn is not None and self._turn.reading:
            reads_s = self._tokens / _READS_TOKENS_PER_S
            self._timer = asyncio.get_running_loop().call_later(reads_s, self.begun)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._turn is not None:
            self._lobby.leave(self._turn)


class Lobby:
    """One line before the engine. Nothing is awaited by a request that need not wait."""

    def __init__(
        self,
        lanes: Lanes,
        patience: Patience,
        readiness: Callable[[], Readiness],
        clock: Callable[[], float] = time.monotonic,
        alive_s: float | None = None,
    ) -> None:
        """`alive_s`: seconds between two signs of life to those who wait."""
        self.line = Line(lanes)
        self.line.set_open(readiness().ready)
        self.waits = Waits()
        self._patience = patience
        self._readiness = readiness
        self._clock = clock
        self._alive_s = alive_s
        self._waiters: dict[Turn, _Waiter] = {}
        self._stopping = False

    def check(self, key: str | None = None) -> None:
        """Raises Refuse when a request that came now would be sent away: nobody uploads for a 503.

        `key`: whose place would be needed; None for what needs none.
        """
        now = self._readiness()
        if self._stopping:
            raise Refuse(_STOPPING)
        if not now.ready and not self._holds(now):
            raise Refuse(not_ready(now.sentence, now.retry_after_s))
        if key is not None and self.line.is_full(key, None if now.ready else self._patience.hold_requests):
            raise self._full(now, f"{self.line.n_waiting} requests wait already")

    def place(self, key: str) -> Place:
        return Place(self, key)

    def fleet_changed(self, now: Readiness) -> None:
        """Those who wait go on, or wait for the recovery, or are told that there is nothing to wait for."""
        was_open = self.line.open
        self._call(self.line.set_open(now.ready))
        if now.ready and not was_open:
            for waiter in self._waiters.values():
                waiter.wait_at_most(self._patience.queue_s)
        elif not now.ready:
            held = self._patience.hold_requests if self._holds(now, was_held=not was_open) else 0
            for n, waiter in enumerate(sorted(self._waiters.values(), key=lambda waiter: waiter.turn.number)):
                if n >= held:
                    waiter.refuse(not_ready(now.sentence, now.retry_after_s))
                elif was_open:
                    waiter.wait_at_most(self._patience.hold_s)

    def stop(self) -> None:
        """The gateway stops: nobody's turn comes any more."""
        self._stopping = True
        for waiter in self._waiters.values():
            waiter.refuse(_STOPPING)

    def _holds(self, now: Readiness, *, was_held: bool = False) -> bool:
        """Whether it is worth waiting: it passes, and soon enough as far as the supervisor knows."""
        hold_s = self._patience.hold_s
        return hold_s > 0 and now.state in _PASSES and (was_held or now.retry_after_s <= hold_s)

    async def enter(
        self, key: str, tokens: float, n_bytes: int, alive: Alive | None = None, places: int = 1
    ) -> Turn:
        """The turn of a request that may go now, to be given to `leave`. Raises Refuse."""
        began, first_position = self._clock(), 0
        while True:
            now = self._readiness()
            turn = self._arrive(now, key, tokens, n_bytes, places)
            first_position = first_position or turn.position
            if not turn.running:
                await self._wait(turn, self._patience.queue_s if now.ready else self._patience.hold_s, alive)
            if self._readiness().ready:
                break
            self.leave(turn)  # the fleet was lost between the call and now
        turn.position = first_position
        if first_position:
            self.waits.ended["served"] += 1
            turn.waited_s = self._clock() - began
            self.waits.seconds += turn.waited_s
        return turn

    def begun(self, turn: Turn) -> None:
        self._call(self.line.begun(turn))

    def leave(self, turn: Turn) -> None:
        self._call(self.line.leave(turn, self._clock()))

    def _arrive(self, now: Readiness, key: str, tokens: float, n_bytes: int, places: int) -> Turn:
        if not now.ready:
            self.check()
        bound = None if now.ready else self._patience.hold_requests
        try:
            turn, given_way = self.line.arrive(key, tokens, n_bytes, self._clock(), bound, places)
        except Full as full:
            raise self._full(now, str(full)) from None
        self._call(self.line.grant())  # room that was kept for the one that gave way
        if given_way is not None and given_way in self._waiters:
            self.waits.ended["gave_way"] += 1
            message = "This request gave way to one of a key that has fewer waiting."
            self._waiters[given_way].refuse(self._overloaded(message, "queue_full"))
        return turn

    async def _wait(self, turn: Turn, seconds: float, alive: Alive | None) -> None:
        waiter = self._waiters[turn] = _Waiter(turn)
        try:
            async with waiter.limit:
                waiter.wait_at_most(seconds)
                while alive and not (await asyncio.wait({waiter.called}, timeout=self._alive_s))[0]:
                    await alive(turn)
                await waiter.called
        except TimeoutError:
            self.waits.ended["timeout"] += 1
            self.leave(turn)
            now = self._readiness()
            if not now.ready:
                raise Refuse(not_ready(now.sentence, now.retry_after_s)) from None
            message = f"This request was not begun within {self._patience.queue_s:g} s."
            raise Refuse(self._overloaded(message, "queue_timeout")) from None
        except BaseException as error:
            if isinstance(error, Refuse):
                self.waits.ended["refused"] += error.failure.code != "queue_full"
            else:
                self.waits.ended["gone"] += 1
            self.leave(turn)
            raise
        finally:
            del self._waiters[turn]

    def _call(self, turns: list[Turn]) -> None:
        for turn in turns:
            waiter = self._waiters.get(turn)  # none: it is arriving just now, and sees itself that it runs
            if waiter is not None and not waiter.called.done():
                waiter.called.set_result(None)

    def _full(self, now: Readiness, why: str) -> Refuse:
        self.waits.ended["full"] += 1
        if not now.ready:
            return Refuse(not_ready(now.sentence, now.retry_after_s))
        return Refuse(self._overloaded(f"No more requests can wait: {why}.", "queue_full"))

    def _overloaded(self, what: str, code: str) -> Failure:
        return Failure(
            503, f"{what} The fleet is busy: try again later.", "overloaded", code,
            retry_after_s=self.line.estimated_wait_s(),
        )  # fmt: skip
