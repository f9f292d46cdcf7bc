"""Reading an engine's answer as it arrives, and noticing when nothing does.

A stream brings a hundred pieces a second and more, and is silent once in a while. So the watch over silence is one
timer for the whole stream, which looks at the clock when it goes off; nothing is armed or taken back for a piece. And
a piece that only has to be handed on is, in the very call in which it arrives: to wake a task for it costs as much
again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

from .answers import Failure, engine_lost
from .readiness import DEFAULT_RETRY_AFTER_S

ENGINE_GONE = (aiohttp.ClientError, HttpProcessingError, OSError)
"""What reading from an engine raises that is dead, was cut off, or does not speak HTTP any more."""


LOST = engine_lost(
    "The engine was lost while it answered: its answer ends here. Try again in a moment.",
    DEFAULT_RETRY_AFTER_S,
)


class EngineRefused(Exception):
    """The engine answered with an error, could not be reached, or was lost; says what to tell the client."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.code)
        self.failure = failure


HandOn = Callable[[bytes], bool]
"""Takes a piece. False: no more for now."""


class EngineConnector(aiohttp.TCPConnector):
    """Its connections tell whoever reads an answer of something new, before they go on.

    By names of aiohttp's that are not public: without them nobody is told, and answers are read by the task alone.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._factory = functools.partial(EngineConnection, loop=asyncio.get_running_loop())


class EngineConnection(ResponseHandler):
    """aiohttp's side of one connection to the engine."""

    tell: Callable[[], None] | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if data and self.tell is not None:  # without, aiohttp goes on parsing because its reader has made room
            self.tell()

    def resume_reading(self, *args: Any, **more: Any) -> None:
        """aiohttp asks for it with every piece that is taken."""
        if getattr(self, "_reading_paused", True):  # not aiohttp's public name
            super().resume_reading(*args, **more)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self.tell is not None:
            self.tell()


class Incoming:
    """One answer, read by the task that made this. Leave the block, or the watch goes on."""

    def __init__(self, upstream: aiohttp.ClientResponse, silence_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._upstream = upstream
        self._content = upstream.content
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._task = task
        self._cancelling = task.cancelling()
        self._reads_since: float | None = None
        """None while the reader does something else, such as waiting for a slow client."""
        self._is_silent = False
        self._timer: asyncio.TimerHandle | None = None
        self._hand_on: HandOn | None = None
        self._woken: asyncio.Future[bytes | None] | None = None

    def __enter__(self) -> Incoming:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def next(self, hand_on: HandOn | None = None) -> bytes | None:
        """What has arrived; b"" after `silence_s` of waiting for it; None at the end. Raises EngineRefused.

        `hand_on` takes what it can of it: then nothing but silence and the end come from here, b"" when it takes no
        more, and what it raises.
        """
        now = self._reads_since = self._loop.time()
        if self._timer is None and not self._content.is_eof():  # a small answer comes whole with its head
            self._timer = self._loop.call_at(now + self._silence_s, self._look)
        try:
            connection = self._upstream.connection
            protocol = connection.protocol if connection is not None else None
            if hand_on is not None and isinstance(protocol, EngineConnection):
                return await self._handing_on(hand_on, protocol)
            return await self._content.readany() or None
        except asyncio.CancelledError:
            # As asyncio.timeout does it: ours alone is silence, any other ends the task.
            silent, self._is_silent = self._is_silent, False
            if not silent or self._task.uncancel() > self._cancelling:
                raise
        except ENGINE_GONE:
            raise EngineRefused(LOST) from None
        finally:
            self._reads_since = None
        self._check_connection()
        return b""

    async def whole(self, at_most_bytes: int | None = None) -> bytes:
        """The rest of it, however long it takes; cut off soon after `at_most_bytes`. Raises EngineRefused."""
        pieces: list[bytes] = []
        n_bytes = 0
        while (piece := await self.next()) is not None:
            pieces.append(piece)
            n_bytes += len(piece)
            if at_most_bytes is not None and n_bytes > at_most_bytes:
                break
        return b"".join(pieces)

    async def _handing_on(self, hand_on: HandOn, connection: EngineConnection) -> bytes | None:
        self._hand_on = hand_on
        self._woken = self._loop.create_future()
        connection.tell = self._arrived
        try:
            self._arrived()
            return await self._woken
        finally:
            self._hand_on = None
            if connection.tell == self._arrived:  # it may serve the next request already
                connection.tell = None

    def _arrived(self) -> None:
        woken, hand_on, content = self._woken, self._hand_on, self._content
        if woken is None or woken.done() or hand_on is None:
            return
        try:
            # Taking a piece makes room, and aiohttp may have parsed more by the time it is here.
            is_new = False
            while piece := content.read_nowait():
                is_new = True
                if not hand_on(piece):
                    woken.set_result(b"")
                    return
            if content.is_eof():
                woken.set_result(None)
            elif is_new:
                self._reads_since = self._loop.time()
            else:
                self._check_connection()
        except Exception as error:
            woken.set_exception(error)

    def _check_connection(self) -> None:
        """Raises EngineRefused: aiohttp 3.14 closes on broken chunked encoding without waking the reader."""
        connection = self._upstream.connection
        if connection is not None and (not connection.transport or connection.transport.is_closing()):
            raise EngineRefused(LOST)

    def _look(self) -> None:
        now, since = self._loop.time(), self._reads_since
        due = (now if since is None else since) + self._silence_s
        if since is not None and due <= now:
            self._is_silent = True
            self._task.cancel()
            due = now + self._silence_s
        self._timer = self._loop.call_at(due, self._look)
