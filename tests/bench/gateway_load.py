"""The asking side of the gateway's benchmark: connections without an HTTP library, so that it takes little itself.

Every answer is looked at: one that is no 200, or does not carry what the upstream said, ends the benchmark.
"""

from __future__ import annotations

import asyncio
import json
import re
import time

GIVE_UP_S = 120.0
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_SENT_AT = re.compile(rb'"content": ?"(\d{20})"')


def request(key: str, model: str, **more: object) -> bytes:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "What is 19 + 23?"}], **more}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Connection(asyncio.Protocol):
    """`over` is done when there is nothing more to come, or with what went wrong."""

    def __init__(self, question: bytes) -> None:
        self._question = question
        self._rest = b""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._transport.write(self._question)

    def _end(self, why: Exception | None = None) -> None:
        if not self.over.done():
            if why is None:
                self.over.set_result(None)
            else:
                self.over.set_exception(why)
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or EOFError(f"the connection ended early: {self._rest[-300:]!r}"))


class Asking(_Connection):
    """Asks for one token, and again as soon as it has the answer: `enough` times, or until `stop()`."""

    def __init__(self, key: str, model: str, enough: int | None = None) -> None:
        super().__init__(request(key, model, max_tokens=1))
        self._enough = enough
        self.took_ms: list[float] = []

    def stop(self) -> None:
        self._enough = 0

    def _ask(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._question)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        answer = self._rest = self._rest + data if self._rest else data
        at = answer.find(b"\r\n\r\n")
        if at < 0:
            return
        length = _LENGTH.search(answer, 0, at)
        if len(answer) < at + 4 + int(length[1]) if length else not answer.endswith(b"\r\n0\r\n\r\n"):
            return
        if not answer.startswith(b"HTTP/1.1 200 ") or b'"42"' not in answer:
            return self._end(ValueError(f"not the answer: {answer[:2000]!r}"))
        self.took_ms.append((now - self._began) * 1e3)
        self._rest = b""
        if self._enough is not None and len(self.took_ms) >= self._enough:
            self._end()
        else:
            self._ask()


async def asking(port: int, key: str, model: str, enough: int | None = None) -> Asking:
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(lambda: Asking(key, model, enough), "127.0.0.1", port))[1]


async def one_after_another(port: int, key: str, model: str, n: int) -> list[float]:
    """Milliseconds of `n` whole one-token requests on one kept connection; a tenth more goes in front, not counted."""
    connection = await asking(port, key, model, n + n // 10)
    await asyncio.wait_for(connection.over, GIVE_UP_S)
    return connection.took_ms[n // 10 :]


class Listener(_Connection):
    """Reads one stream: how late each event is against the time that it carries."""

    def __init__(self, question: bytes, late_ms: list[float], keep: bytearray | None = None) -> None:
        super().__init__(question)
        self._late_ms, self._keep = late_ms, keep
        self._head_is_over = False
        self._left = 0  # of the HTTP chunk that is being read
        self._last_chunk = self._done = False
        self._text = b""

    def _unchunked(self, data: bytes) -> bytes:
        """What is in the HTTP chunks. Proxies cut them anew, also in the middle of an event."""
        data, at, inside = self._rest + data, 0, []
        while at < len(data):
            if self._left:
                inside.append(data[at : at + self._left])
                at += len(inside[-1])
                self._left -= len(inside[-1])
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            if end > at:  # else it is the end of the chunk before
                self._left = int(data[at:end].split(b";")[0], 16)
                self._last_chunk = self._left == 0
            at = end + 2
        self._rest = data[at:]
        return b"".join(inside)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        if not self._head_is_over:
            head, end, data = (self._rest + data).partition(b"\r\n\r\n")
            if not end:
                self._rest = head
                return
            if not head.startswith(b"HTTP/1.1 200 ") or b"chunked" not in head.lower():
                return self._end(ValueError(f"not a stream: {head!r} {data[:2000]!r}"))
            self._head_is_over, self._rest = True, b""
        text = self._unchunked(data)
        if self._keep is not None:
            self._keep += text
        whole, _, self._text = (self._text + text).rpartition(b"\n\n")
        for sent_at in _SENT_AT.findall(whole):
            self._late_ms.append((now_ns - int(sent_at)) / 1e6)
        self._done = self._done or whole.endswith(b"data: [DONE]")
        if self._last_chunk:
            self._end(None if self._done else ValueError(f"a stream without [DONE]: {whole[-300:]!r}"))


def times(stream: bytes) -> list[int]:
    """The times that a kept stream carries, in its order."""
    return [int(sent_at) for sent_at in _SENT_AT.findall(stream)]


async def one_stream(port: int, key: str, model: str, n_events: int) -> bytes:
    """The bytes of one stream, usage asked for."""
    kept = bytearray()
    question = request(key, model, max_tokens=n_events, stream=True, stream_options={"include_usage": True})
    loop = asyncio.get_running_loop()
    _, listener = await loop.create_connection(lambda: Listener(question, [], kept), "127.0.0.1", port)
    await asyncio.wait_for(listener.over, GIVE_UP_S)
    return bytes(kept)


class Streams:
    """`n` streams at once, each of `n_events`."""

    def __init__(self, port: int, key: str, model: str, n: int, n_events: int) -> None:
        self.late_ms: list[float] = []
        self._port, self._n = port, n
        self._question = request(key, model, max_tokens=n_events, stream=True)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        listening = []
        for _ in range(self._n):
            _, listener = await loop.create_connection(
                lambda: Listener(self._question, self.late_ms), "127.0.0.1", self._port
            )
            listening.append(listener.over)
        await asyncio.wait_for(asyncio.gather(*listening), GIVE_UP_S)
