"""An engine's answer as it arrives: taken by a task, or handed on in the very call in which it arrives.

A stream brings a hundred pieces a second and more, and is silent once in a while. To wake a task for a piece that only
has to be handed on costs as much again as handing it on; and the watch over silence is one timer for the whole answer,
which looks at the clock when it goes off.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from enum import Enum
from typing import Protocol, TypeAlias

from .answers import Failure, engine_lost
from .readiness import DEFAULT_RETRY_AFTER_S

MAX_HELD_BYTES = 32 << 10
"""For a reader that is busy with a slow client; and one read of the socket more. Then the engine waits too."""

LOST = engine_lost(
    "The engine was lost while it answered: its answer ends here. Try again in a moment.",
    DEFAULT_RETRY_AFTER_S,
)

HandOn = Callable[[bytes], bool]
"""Takes a piece. False: no more for now."""


class EngineRefused(Exception):
    """The engine answered with an error, could not be reached, or was lost; says what to tell the client."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.code)
        self.failure = failure


class _Not(Enum):
    YET = "nothing to tell yet"


_Told: TypeAlias = bytes | None | _Not


class Source(Protocol):
    """Where an answer comes from. These do nothing when that has gone already."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...


class Incoming:
    """One answer. The connection fills in the first attributes and calls `arrived`; one task reads.

    Attributes: `status`: 0 until the head is here. `content_type`: as the engine says it, "" if it does not.
    """

    def __init__(self, source: Source, silence_s: float) -> None:
        self.status = 0
        self.content_type = ""
        self.is_over = False
        """All of it has come."""
        self._source = source
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._n_held = 0
        self._is_paused = False
        self._is_lost = False
        self._woken: asyncio.Future[_Told] | None = None
        self._look: Callable[[], _Told] | None = None
        self._waits_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def media_type(self) -> str:
        return self.content_type.partition(";")[0].strip().lower()

    # --- the connection's side

    def put(self, piece: bytes) -> None:
        """Of the body; `arrived` comes after the last of one read."""
        self._pieces.append(piece)
        self._n_held += len(piece)

    def arrived(self) -> None:
        """Something is new: whoever waits goes on, or is handed it."""
        woken, look = self._woken, self._look
        if woken is not None and look is not None and not woken.done():
            try:
                told = look()
            except Exception as error:
                woken.set_exception(error)
            else:
                if told is _Not.YET:
                    self._waits_since = self._loop.time()
                else:
                    woken.set_result(told)
        if self._n_held > MAX_HELD_BYTES and not self._is_paused and not self.is_over:
            self._is_paused = True
            self._source.pause()

    def lose(self) -> None:
        """The engine is gone, or speaks no HTTP. What has come before it can be read still."""
        if not self.is_over:
            self._is_lost = True
            self.arrived()

    # --- the reader's side

    async def begins(self) -> bool:
        """Whether the head is here; False after `silence_s` of waiting for it. Raises EngineRefused."""
        return await self._wait(self._head) is not _Not.YET

    async def next(self, hand_on: HandOn | None = None) -> bytes | None:
        """What has arrived; b"" after `silence_s` of waiting for it; None at the end. Raises EngineRefused.

        `hand_on` takes what it can of it: then nothing but silence and the end come from here, b"" when it takes no
        more, and what it raises.
        """
        told = await self._wait(self._take if hand_on is None else functools.partial(self._take, hand_on))
        return b"" if isinstance(told, _Not) else told

    async def whole(self, at_most_bytes: int | None = None) -> bytes:
        """The rest of it, however long it takes; cut off soon after `at_most_bytes`. Raises EngineRefused."""
        if self.is_over:  # a small answer comes with its head
            return self._joined()
        pieces: list[bytes] = []
        n_bytes = 0
        while (piece := await self.next()) is not None:
            pieces.append(piece)
            n_bytes += len(piece)
            if at_most_bytes is not None and n_bytes > at_most_bytes:
                break
        return b"".join(pieces)

    def close(self) -> None:
        """Nobody reads on: the engine sees its connection closed, unless it has said everything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.is_over:
            self._source.close()

    # --- inside

    async def _wait(self, look: Callable[[], _Told]) -> _Told:
        """What there is to tell; _Not.YET after `silence_s` of waiting for it."""
        told = look()
        if told is not _Not.YET:
            return told
        self._look, self._woken = look, self._loop.create_future()
        self._waits_since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(self._waits_since + self._silence_s, self._listen)
        try:
            return await self._woken
        finally:
            self._look = self._woken = None

    def _listen(self) -> None:
        """Whether it has been silent for too long by now. Not while the reader does something else, such as waiting for
        a slow client."""
        now, woken = self._loop.time(), self._woken
        since = now if woken is None else self._waits_since
        if now - since >= self._silence_s:
            if woken is not None and not woken.done():
                woken.set_result(_Not.YET)
            since = now
        self._timer = self._loop.call_at(since + self._silence_s, self._listen)

    def _head(self) -> _Told:
        if self.status:
            return b""
        if self._is_lost:
            raise EngineRefused(LOST)
        return _Not.YET

    def _take(self, hand_on: HandOn | None = None) -> _Told:
        if self._pieces:
            piece = self._joined()
            if hand_on is None:
                return piece
            if not hand_on(piece):
                return b""
        if self.is_over:
            return None
        if self._is_lost:
            raise EngineRefused(LOST)
        return _Not.YET

    def _joined(self) -> bytes:
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._n_held = 0
        if self._is_paused:
            self._is_paused = False
            self._source.resume()
        return piece
