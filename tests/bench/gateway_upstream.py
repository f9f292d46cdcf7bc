"""The scripted engine and supervisor of the gateway's benchmark: as little work as can be, so that it measures others.

    python tests/bench/gateway_upstream.py ENGINE_PORT SUPERVISOR_PORT

A request with `"stream": true` gets `max_tokens` events, `RATE` a second, each with the time it was sent at
(CLOCK_MONOTONIC, ns); one without gets one answer at once. Nothing is parsed that need not be.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time

RATE = 150
"""Events a second of one stream: what a Spark fleet decodes at, and more. Source: issue 8, numbers."""
MODEL = "bench"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": ?(\d+)')
_ANSWER = json.dumps(
    {"id": "x", "object": "chat.completion", "created": 1, "model": MODEL,
     "choices": [{"index": 0, "message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}],
     "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}}
).encode()  # fmt: skip
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_ANSWER) + _ANSWER
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":'
    b'{"content":"%020d"},"finish_reason":null}]}\n\n'
)
_SIZE = len(_EVENT % 0)
_USAGE = b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],"usage":%s}\n\n'


def _usage(n_events: int) -> bytes:
    return _USAGE % json.dumps({"prompt_tokens": 9, "completion_tokens": n_events}).encode()


def stream(sent_at: list[int]) -> bytes:
    """The bytes of a stream whose events were sent at these times."""
    return b"".join(_EVENT % ns for ns in sent_at) + _usage(len(sent_at)) + b"data: [DONE]\n\n"


class Engine(asyncio.Protocol):
    """One connection. Answers one request after the other."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._rest = b""
        self._streaming: asyncio.Task[None] | None = None

    def connection_lost(self, error: Exception | None) -> None:
        if self._streaming is not None:
            self._streaming.cancel()

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, end, body = self._rest.partition(b"\r\n\r\n")
        if not end:
            return
        length = _LENGTH.search(head)
        if length is None or len(body) < int(length[1]):
            return
        self._rest = b""
        if b'"stream": true' in body or b'"stream":true' in body:
            tokens = _TOKENS.search(body)
            self._streaming = asyncio.ensure_future(self._stream(int(tokens[1]) if tokens else 1))
        else:
            self._transport.write(_WHOLE)

    async def _stream(self, n_events: int) -> None:
        write = self._transport.write
        write(_STREAM)
        began = time.monotonic()
        for i in range(n_events):
            await asyncio.sleep(max(0.0, began + i / RATE - time.monotonic()))
            write(b"%x\r\n" % _SIZE + _EVENT % time.monotonic_ns() + b"\r\n")
        usage = _usage(n_events)
        write(b"%x\r\n" % len(usage) + usage + b"\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


class Supervisor(asyncio.Protocol):
    """Says for ever that the fleet serves, once a second."""

    def __init__(self, engine_port: int) -> None:
        self._says = json.dumps(
            {"version": 1, "ready": True, "reason": None, "state": "serving", "boot": "boot-1", "detail": None,
             "upstream": f"http://127.0.0.1:{engine_port}", "served_model_name": MODEL, "retry_after_s": 0.0}
        ).encode()  # fmt: skip

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(self._says)
        asyncio.get_running_loop().call_later(
            1.0 if b"since=1" in data else 0.0, self._transport.write, answer + self._says
        )


async def main(engine_port: int, supervisor_port: int) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(Engine, "127.0.0.1", engine_port, backlog=1024)
    await loop.create_server(lambda: Supervisor(engine_port), "127.0.0.1", supervisor_port)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
