"""The asking side of the gateway's benchmark: connections without an HTTP library, so that it takes little itself."""

from __future__ import annotations

import asyncio
import json
import re
import time

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_SENT_AT = re.compile(rb'"content": ?"(\d{20})"')


def request(key: str, model: str, **more: object) -> bytes:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "What is 19 + 23?"}], **more}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection:
    """One kept connection that asks one question after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: bytes) -> None:
        self._reader, self._writer, self._question = reader, writer, question

    @classmethod
    async def open(cls, port: int, key: str, model: str) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return cls(reader, writer, request(key, model, max_tokens=1))

    async def whole(self) -> int:
        """Ask, and read the whole answer; its status. Raises EOFError when the other end hangs up."""
        self._writer.write(self._question)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if length is not None:
            await self._reader.readexactly(int(length[1]))
        else:
            while (size := int((await self._reader.readline()).split(b";")[0], 16)) > 0:
                await self._reader.readexactly(size + 2)
            await self._reader.readline()
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        self._writer.close()


async def throughput(port: int, key: str, model: str, n_connections: int, seconds: float) -> float:
    """Requests a second that `n_connections` get answered, each asking again at once."""
    until = time.monotonic() + seconds

    async def ask() -> int:
        connection, n = await Connection.open(port, key, model), 0
        while time.monotonic() < until:
            assert await connection.whole() == 200
            n += 1
        connection.close()
        return n

    return sum(await asyncio.gather(*(ask() for _ in range(n_connections)))) / seconds


class _Listener(asyncio.Protocol):
    """Reads one stream: the time of each event against the one that it carries."""

    def __init__(self, question: bytes, late_ms: list[float]) -> None:
        self._question, self._late_ms = question, late_ms
        self._rest = b""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        transport.write(self._question)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            for sent_at in _SENT_AT.findall(event):
                self._late_ms.append((now_ns - int(sent_at)) / 1e6)
            if b"[DONE]" in event and not self.over.done():
                self.over.set_result(None)
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(error or EOFError(f"the stream ended early: {self._rest[-300:]!r}"))


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
                lambda: _Listener(self._question, self.late_ms), "127.0.0.1", self._port
            )
            listening.append(listener.over)
        await asyncio.gather(*listening)
