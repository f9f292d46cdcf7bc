"""Connections to the engine, on which it is asked one thing at a time.

Not aiohttp's client, which the rest of the project uses: with its sessions, cookies, redirects and two readers between
the socket and us it was two fifths of what a short request cost here. HTTP itself is read by llhttp (httptools).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast
from urllib.parse import urlsplit

import httptools

from .answers import not_ready
from .incoming import EngineRefused, Incoming

KEEP_S = 2.0
"""A connection is used again for this long. uvicorn closes idle ones after 5 s; we never send into a closing one."""
MAX_HEAD_BYTES = 128 << 10
"""Of an answer's head or trailer, or of anything else that is no body. Guess."""
RETRY_SOON_S = 2.0
_JOINED_BYTES = 64 << 10

ABSENT = not_ready("The engine does not accept connections just now. Try again in 2 s.", RETRY_SOON_S)


class EngineAbsent(EngineRefused):
    """There was nobody to ask."""

    def __init__(self) -> None:
        super().__init__(ABSENT)


class Engine:
    """Asks the engine, over connections that are kept for the next question.

    `silence_s`: after this long without a word, readers of answers are told so.
    """

    def __init__(self, connect_s: float, silence_s: float) -> None:
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._targets: dict[str, Target] = {}
        self._open: set[Connection] = set()

    async def ask(
        self, base: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Incoming:
        """Sends a POST of JSON, or a GET when there is no body. The caller closes what this gives.

        `base`: http://host:port. Raises EngineAbsent when there is no connection to be had.
        """
        target = self._target(base)
        connection = self._kept(target) or await self._connect(target)
        answer = Incoming(connection, self._silence_s)
        connection.ask(target.question(path, body, headers), body, answer)
        return answer

    def close(self) -> None:
        for connection in list(self._open):
            connection.close()

    # --- the connection's side

    def left(self, connection: Connection) -> None:
        self._open.discard(connection)

    def keep(self, connection: Connection) -> None:
        """It has answered, and can be asked again. Those that were not needed for a while are closed."""
        now = connection.kept_at = self._loop.time()
        kept = connection.target.kept
        kept.append(connection)
        while kept[0].kept_at < now - KEEP_S:
            kept.popleft().close()

    # --- inside

    def _target(self, base: str) -> Target:
        target = self._targets.get(base)
        if target is None:
            try:
                target = self._targets[base] = Target(base)
            except ValueError:
                raise EngineAbsent from None
            for other in [known for known in self._targets if known != base]:  # of a boot that has ended
                for connection in self._targets.pop(other).kept:
                    connection.close()
        return target

    def _kept(self, target: Target) -> Connection | None:
        now = self._loop.time()
        while target.kept:
            connection = target.kept.pop()
            if connection.can_be_asked() and now - connection.kept_at < KEEP_S:
                return connection
            connection.close()
        return None

    async def _connect(self, target: Target) -> Connection:
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self, target), target.host, target.port
                )
        except OSError:  # TimeoutError is one
            raise EngineAbsent from None
        if connection.is_open:
            # Not when it is made: uvloop tells it nothing when whoever waits for it is cancelled in that moment.
            self._open.add(connection)
        return connection


class Target:
    """An address of the engine's, and the connections to it that nobody uses."""

    def __init__(self, base: str) -> None:
        """Raises ValueError for what is no address."""
        parts = urlsplit(base)
        if not parts.hostname:
            raise ValueError(base)
        self.host, self.port = parts.hostname, parts.port or 80
        self.kept: deque[Connection] = deque()
        """The one used last at the end."""
        self._path = parts.path
        self._head = f" HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept-Encoding: identity\r\n"

    def question(self, path: str, body: bytes | None, headers: dict[str, str] | None) -> bytes:
        """The head of a request. Names and values are ours: nothing of a client's comes here."""
        lines = [f"{'GET' if body is None else 'POST'} {self._path}{path}{self._head}"]
        if body is not None:
            lines.append(f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n")
        if headers:
            lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
        lines.append("\r\n")
        return "".join(lines).encode("ascii")


class Connection(asyncio.Protocol):
    """One connection: a question, its answer, and perhaps the next. Also the source of that answer."""

    def __init__(self, engine: Engine, target: Target) -> None:
        self.target = target
        self.kept_at = 0.0
        self.is_open = False
        self._engine = engine
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Incoming | None = None
        self._n_head_bytes = 0
        """Since something of a body came last."""
        self._is_measured = False
        """The answer says where it ends; else it does with the connection."""
        self._is_whole = self._can_go_on = False

    def can_be_asked(self) -> bool:
        """The loop may know already that it ends, and tell us with its next turn."""
        return self.is_open and self._transport is not None and not self._transport.is_closing()

    def ask(self, head: bytes, body: bytes | None, answer: Incoming) -> None:
        if self._transport is None:  # it came and went
            answer.lose()
            return
        self._answer = answer
        self._n_head_bytes = 0
        self._is_whole = False
        if body is None or len(body) < _JOINED_BYTES:
            self._transport.write(head + body if body else head)
        else:
            self._transport.write(head)
            self._transport.write(body)

    # --- for the answer's reader

    def pause(self) -> None:
        if self._transport is not None and self.is_open:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self.is_open:
            self._transport.resume_reading()

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or not self.is_open:  # it speaks unasked
            self.close()
            return
        self._n_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.close()
            if not self._is_whole:
                answer.lose()
                return
        if self._is_whole:
            self._end(answer)
        elif self._n_head_bytes > MAX_HEAD_BYTES:
            self.close()
            answer.lose()
            return
        answer.arrived()

    def eof_received(self) -> None:
        """Else asyncio would first send the rest of the question, to an engine that may not read it."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        was_open, self.is_open = self.is_open, False
        self._transport = None
        del self._parser  # it holds this in turn
        self._engine.left(self)
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if was_open and error is None and answer.status and not self._is_measured:
            answer.is_over = True
            answer.arrived()
        else:
            answer.lose()

    # --- llhttp's

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered in (b"content-length", b"transfer-encoding"):
            self._is_measured = True
        elif lowered == b"content-type" and self._answer is not None:
            self._answer.content_type = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._answer is not None and status >= 200:
            self._answer.status = status

    def on_body(self, piece: bytes) -> None:
        self._n_head_bytes = 0
        if self._answer is not None:
            self._answer.put(piece)

    def on_message_complete(self) -> None:
        if self._answer is not None and self._answer.status:  # else it said 100 Continue
            self._is_whole = True
            self._can_go_on = self._parser.should_keep_alive()  # it knows only now

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise ValueError("a second answer to one question")
        self._is_measured = False

    def _end(self, answer: Incoming) -> None:
        answer.is_over = True
        self._answer = None
        transport = self._transport
        if transport and self.is_open and self._can_go_on and not transport.get_write_buffer_size():
            self._engine.keep(self)
        else:
            self.close()
