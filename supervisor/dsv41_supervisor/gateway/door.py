"""Who may stay connected. What is no request is answered in words; who asks nothing, or reads nothing, is closed.

aiohttp waits for a client that does not read for as long as it lives, holds any number of connections, and answers
what it cannot parse with its own text. Each connection costs a descriptor, and 6 kB (measured before its first
request) of memory that is the model's.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, LineTooLong
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler

from ..journal import log
from .answers import bad_request, internal, unknown_encoding

FIRST_S = 30.0
"""For a new connection's first request to have a whole head. On later ones, aiohttp's keep-alive bounds it."""
STALLED_S = 120.0
"""A client that takes nothing of its answer for this long is gone. Guess; a laptop that sleeps loses its stream."""
HANDSHAKE_S = 10.0
"""For TLS to be agreed on."""
LOOK_S = 1.0
MAX_CONNECTIONS = 2048
"""Many times what the engine runs together. Guess."""
MAX_HEAD_BYTES = 64 << 10
"""Of a request's line and headers. until aiohttp >= 3.14 everywhere: earlier ones take any number of headers."""
MAX_QUEUED = 1000
"""Requests that came before the answer to the first. Until the same aiohttp, which stops reading at far fewer."""
_OWN_FILES = 128
"""Descriptors that are not a client's or its engine's."""
_SAY_AGAIN_S = 60.0


class Door:
    """Lets connections in. When there are too many, whoever is idle longest at the address that has most idle ones
    makes room, so that nobody shuts others out by connecting; those whose request is being answered stay."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # A request has a connection to the engine too. At the limit of files `accept` would fail for everybody.
        self._most = max(8, min(MAX_CONNECTIONS, (soft - _OWN_FILES) // 2))
        self._since_s: dict[Connection, float] = {}
        """All that are open: when it connected, and from its first request on infinity."""
        self._idle: dict[str, dict[Connection, None]] = {}
        """Without a request being answered, by address, the one idle longest first."""
        self._busy: Counter[Connection] = Counter()
        self._unread: dict[Connection, tuple[int, float]] = {}
        """Bytes that the client has not taken yet, and when it last took some."""
        self._said_at_s = -_SAY_AGAIN_S
        self._now_s = 0.0
        """Counted in looks: while this process itself stood still, nobody was slow."""

    @web.middleware
    async def busy(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.protocol
        if not isinstance(connection, Connection) or connection not in self._since_s:
            return await handler(request)
        self._since_s[connection] = float("inf")
        self._busy[connection] += 1
        self._forget_idle(connection)
        try:
            return await handler(request)
        finally:
            self._busy[connection] -= 1
            if not self._busy[connection]:
                del self._busy[connection]
                if connection in self._since_s:
                    self._idle.setdefault(connection.address, {})[connection] = None

    def enter(self, connection: Connection) -> bool:
        """False when all that are there are being answered."""
        if len(self._since_s) >= self._most and not self._make_room():
            return False
        self._since_s[connection] = self._now_s
        self._idle.setdefault(connection.address, {})[connection] = None
        return True

    def leave(self, connection: Connection) -> None:
        self._since_s.pop(connection, None)
        self._unread.pop(connection, None)
        self._forget_idle(connection)

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._now_s += LOOK_S
            for connection, since_s in list(self._since_s.items()):
                if self._now_s - since_s > FIRST_S or self._is_stalled(connection):
                    connection.drop()

    def _is_stalled(self, connection: Connection) -> bool:
        unread, now = connection.n_unread, self._now_s
        before, took_at = self._unread.get(connection, (0, now))
        if not unread:
            self._unread.pop(connection, None)
            return False
        # More than before: either it is being written to, or has just begun.
        self._unread[connection] = (unread, took_at if before and unread >= before else now)
        return now - self._unread[connection][1] > STALLED_S

    def _make_room(self) -> bool:
        now = time.monotonic()
        if now - self._said_at_s >= _SAY_AGAIN_S:
            self._said_at_s = now
            log.warning("%d connections, as many as may be: new ones take the place of idle ones", self._most)
        if not self._idle:
            return False
        address = max(self._idle, key=lambda address: len(self._idle[address]))
        longest = next(iter(self._idle[address]))
        self.leave(longest)
        longest.drop()
        return True

    def _forget_idle(self, connection: Connection) -> None:
        there = self._idle.get(connection.address, {})
        there.pop(connection, None)
        if not there:
            self._idle.pop(connection.address, None)


class Connection(RequestHandler):
    """aiohttp's side of one connection, which asks at the door, and answers errors as the rest of the gateway does."""

    __slots__ = ("_door", "_head_bytes", "address")

    def __init__(self, door: Door, server: web.Server, **more: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **more)
        self._door = door
        self._head_bytes = 0
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        let_in = self._door.enter(self)
        super().connection_made(transport)
        if not let_in:
            self.drop()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._door.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        n_queued = len(self._messages)
        waits_for_a_head = self._waiter is not None and not n_queued
        self._head_bytes = self._head_bytes + len(data) if waits_for_a_head else 0
        if self._head_bytes > MAX_HEAD_BYTES or n_queued > MAX_QUEUED:
            self.drop()

    @property
    def n_unread(self) -> int:
        """Bytes that wait here because the client's side takes no more."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What cannot be parsed. The message is not aiohttp's, which shows what was sent: it may hold a key."""
        if request.writer.output_size > 0:
            raise ConnectionError("half an answer is out already")
        if status >= 500:
            failure = internal()
        elif isinstance(exc, LineTooLong):
            told = "The request's line or one of its headers is too long."
            failure = bad_request(told, code="header_too_large", status=431)
        elif isinstance(exc, ContentEncodingError):
            failure = unknown_encoding()
        else:
            failure = bad_request("This is not an HTTP/1.1 request that can be read.", code="malformed_http")
        response = failure.response({"Server": "dsv41"})
        response.force_close()
        return response
