"""The client's side of a stream."""

from __future__ import annotations

import asyncio

from aiohttp import web

from . import sse
from .answers import Failure
from .metrics import Metrics
from .observe import Observer
from .protocols import Protocol

_NO_BUFFERING = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class ClientGone(Exception):
    """Nobody reads this answer any more."""


class Outlet:
    """Writes events to one client. Until the first byte `response` is None, and errors have a status."""

    def __init__(self, request: web.Request, metrics: Metrics, protocol: Protocol, observer: Observer) -> None:
        self.response: web.StreamResponse | None = None
        self.events = sse.WholeEvents(protocol)
        self.observer = observer
        self._whole = True
        self._request = request
        self._writer = request.writer
        self._client = request.protocol
        self._metrics = metrics
        self._protocol = protocol

    async def start(self, headers: dict[str, str]) -> None:
        if self.response is not None:
            return
        kind = {"Content-Type": "text/event-stream; charset=utf-8"}
        response = web.StreamResponse(headers=headers | _NO_BUFFERING | kind)
        try:
            await response.prepare(self._request)
        except ConnectionError:
            raise ClientGone from None
        self.response = response

    async def write(self, content: bytes) -> None:
        """Waits while the client is slow; then the engine's connection is not read either."""
        if not content:
            return
        assert self.response is not None
        self._whole = content.endswith((b"\n\n", b"\r\n\r\n"))
        try:
            await self.response.write(content)
        except ConnectionError:
            raise ClientGone from None

    def hand_on(self, chunk: bytes) -> bool:
        """The whole events of a chunk, without waiting, once the answer has begun. False when the client is slow: then
        `catch_up` comes before the next."""
        content = self.observer.look(self.events.feed(chunk))
        if content:
            self._whole = content.endswith((b"\n\n", b"\r\n\r\n"))
            transport = self._request.transport
            if transport is None or transport.is_closing():
                raise ClientGone
            # As aiohttp's writer does it, which takes three calls and a coroutine to get there.
            transport.write(b"%x\r\n%b\r\n" % (len(content), content) if self._writer.chunked else content)
        return not self._client.writing_paused

    @property
    def is_behind(self) -> bool:
        return self._client.writing_paused

    async def catch_up(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            raise ClientGone from None

    async def keep_alive(self) -> None:
        if self._whole:
            self._metrics.keep_alives += 1
            await self.write(self._protocol.keep_alive)

    async def end(self) -> None:
        assert self.response is not None
        try:
            await self.response.write_eof()
        except ConnectionError:
            raise ClientGone from None

    async def fail(self, failure: Failure, within_s: float) -> None:
        """End with an error event, never with silence or `[DONE]`. A client that does not read is dropped."""
        self._metrics.streams_cut += 1
        last = sse.error_events(
            self._protocol, failure,
            after_boundary=self._whole, begun=self.observer.seen.begun, number=self.observer.next_number,
        )  # fmt: skip
        try:
            async with asyncio.timeout(within_s):
                await self.write(last)
                await self.end()
        except (TimeoutError, ClientGone):
            if self._request.transport is not None:
                self._request.transport.abort()
