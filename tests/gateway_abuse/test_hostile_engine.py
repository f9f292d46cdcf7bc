"""Attack from behind: an engine that answers garbage, without end, in odd statuses, or in half.

What the client sees: a 502 or 503 of its protocol, or a stream that ends with an error event; no 500, no silence.
What the operator sees: nothing but counters, and those with known words only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.gateway_abuse.target import DONE, KEY, PATIENCE_S, Target, Upstream, read_answer, request, whole

PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/tokenize"]
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_DEEP = b"[" * 100_000


def ask(target: Target, path: str, *, stream: bool) -> Any:
    body = {"stream": stream, "max_tokens": 5, "max_output_tokens": 5, "input": "x", "prompt": "x"}
    if path in ("/v1/chat/completions", "/v1/messages"):
        body = {"stream": stream, "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    elif path == "/v1/responses":
        del body["prompt"]
    return target.post(path, body)


def always(raw: bytes) -> Callable[..., Awaitable[None]]:
    async def script(_path: str, _body: dict[str, Any], out: asyncio.StreamWriter) -> None:
        out.write(raw)

    return script


def _error(said: object, status: str = "400 Bad Request") -> bytes:
    return whole(json.dumps(said).encode(), status)


_USAGE = {"prompt_tokens": [], "completion_tokens": {}, "input_tokens": "x", "output_tokens": None,
          "prompt_tokens_details": 1, "input_tokens_details": [], "cache_read_input_tokens": "x"}  # fmt: skip
_COUNTED = {"prompt_tokens": 1, "input_tokens": 1, "completion_tokens": -(10**30), "output_tokens": 1,
            "cache_read_input_tokens": [], "prompt_tokens_details": {"cached_tokens": {}}}  # fmt: skip
ODD: list[Any] = [
    None, 1, "x", [], [[]], {"usage": _USAGE}, {"usage": _COUNTED}, {"choices": 1}, {"choices": [1]}, {"choices": [{}]},
    {"choices": [{"matched_stop": []}]}, {"choices": [{"matched_stop": "repetition: output token " + "9" * 5000}]},
    {"choices": [{"finish_reason": "a\r\nX-Injected: b"}]}, {"choices": [{"finish_reason": 'a"} 1\nx{a="b'}]},
    {"choices": [{"finish_reason": "\ud800" * 3}]}, {"choices": [{"finish_reason": "y" * 100_000}]},
    {"stop_reason": "a\r\nb"}, {"stop_reason": []}, {"message": {"usage": _COUNTED, "stop_reason": {}}}, {"delta": []},
    {"status": "completed", "output": 1}, {"status": "completed", "output": [1, {"type": []}, {"type": {}}]},
    {"status": "incomplete", "incomplete_details": {"reason": "a\nb"}}, {"status": []}, {"response": {"output": {}}},
    {"error": "x"}, {"error": []}, {"error": {"message": {}}},
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_odd_json_in_an_answer_is_passed_on_and_harms_nothing(target: Target, upstream: Upstream, path: str) -> None:
    for said in ODD:
        with upstream.acting(always(whole(json.dumps(said).encode()))):
            answer = ask(target, path, stream=False)
        if not isinstance(said, dict) and path != "/v1/tokenize":
            assert answer.status == 502, (said, answer)
            continue
        assert answer.status == 200 and json.loads(answer.body) == said, (said, answer)
        assert "x-injected" not in answer.headers and len(answer.headers.get("x-dsv41-finish", "")) < 40, answer


NAMES = {
    "/v1/chat/completions": [None],
    "/v1/responses": ["response.created", "response.completed", "response.failed", "error"],
    "/v1/messages": ["message_start", "message_delta", "error", "message_stop"],
}


@pytest.mark.parametrize("path", sorted(NAMES))
def test_odd_json_in_a_stream_is_passed_on_and_harms_nothing(target: Target, upstream: Upstream, path: str) -> None:
    for said in [*ODD, *({"response": odd} for odd in ODD), *({"error": {"message": "m", "type": odd}} for odd in ODD)]:
        for name in NAMES[path]:
            event = (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(said).encode() + b"\n\n"
            with upstream.acting(always(whole(event + event + DONE, kind="text/event-stream"))):
                answer = ask(target, path, stream=True)
            assert answer.status < 500 or answer.error["code"] != "internal_error", (said, name, answer)


STATUSES = (
    "201 Created", "204 No Content", "301 Moved", "304 Not Modified", "400 x", "401 x", "407 x", "422 x", "429 x",
    "500 x", "503 x", "599 x", "600 x", "999 x",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_odd_errors_are_told_in_our_shape(target: Target, upstream: Upstream, path: str) -> None:
    bodies = [b"", _DEEP, b"{", b"\xff\xfe", *(json.dumps(odd).encode() for odd in ODD[:8])]
    for odd in ODD:
        bodies.append(json.dumps({"error": {"message": odd, "code": odd, "param": odd, "type": odd}}).encode())
    for i, body in enumerate(bodies):
        for status in STATUSES if i == 0 else ("400 x", "500 x"):
            with upstream.acting(always(whole(body, status))):
                answer = ask(target, path, stream=i % 2 == 0)
            assert 400 <= answer.status < 600, (status, answer)
            assert answer.error["message"] and answer.error.get("code") != "internal_error", (status, body[:80], answer)


BROKEN = {
    "nothing": b"",
    "no-http": b"\x00\x01\x02garbage\r\n\r\n",
    "http-9": b"HTTP/9.9 200 OK\r\n\r\n",
    "no-status": b"HTTP/1.1 \r\n\r\n",
    "word-for-a-status": b"HTTP/1.1 OK 200\r\n\r\n",
    "half-a-head": b"HTTP/1.1 200 OK\r\nContent-Type: appl",
    "half-json": _JSON + b"Content-Length: 100\r\n\r\n{\"choices\": [{",
    "half-an-event": _HEAD + b"\r\ndata: {\"choices",
    "no-last-event": _HEAD + b"\r\n" + b'data: {"choices": []}\n\n',
    "chunk-of-no-size": _HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
    "chunk-of-a-negative-size": _HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n",
    "chunk-of-64-bits": _HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc\r\n",
    "chunks-without-end": _HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\ndata:",
    "two-lengths": _JSON + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n123456",
    "length-and-chunked": _JSON + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a-huge-header": _JSON + b"X: " + b"a" * (1 << 20) + b"\r\n\r\n",
    "many-headers": _JSON + b"X-A: b\r\n" * 100_000 + b"\r\n",
    "gzip-that-nobody-asked-for": _JSON + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
    "redirect": b"HTTP/1.1 307 x\r\nLocation: http://127.0.0.1:1/secret\r\nContent-Length: 0\r\n\r\n",
    "many-times-100": b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
    "101": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc",
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", sorted(BROKEN))
def test_an_engine_that_does_not_speak_http_is_a_lost_engine(
    target: Target, upstream: Upstream, name: str, stream: bool
) -> None:
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
        with upstream.acting(always(BROKEN[name])):
            answer = ask(target, path, stream=stream)
        if answer.status != 200:
            assert answer.status in (502, 503) and answer.error["code"] != "internal_error", (path, answer)
        elif b"gzip" not in BROKEN[name]:
            assert b"error" in answer.body, (path, answer)


def endlessly(head: bytes, piece: bytes, stop_after: int | None = None) -> Callable[..., Awaitable[None]]:
    async def script(_path: str, body: dict[str, Any], out: asyncio.StreamWriter) -> None:
        if body.get("user") == "healthy":
            out.write(whole(b'{"choices": [{"message": {"content": "42"}}]}'))
            return
        out.write(head)
        sent = 0
        while stop_after is None or sent < stop_after:
            out.write(piece)
            sent += len(piece)
            await out.drain()

    return script


MIB = 1 << 20
ENDLESS = {
    "head": (b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"b" * 1000 + b"\r\n", False),
    "answer": (_JSON + b"\r\n", b" " * (64 << 10), False),
    "error": (b"HTTP/1.1 400 x\r\n\r\n", b" " * (64 << 10), False),
    "event": (_HEAD + b"\r\ndata: ", b"a" * (64 << 10), True),
    "pings": (_HEAD + b"\r\n", b"event: ping\ndata: {}\n\n" * 3000, True),
}


@pytest.mark.parametrize("name", sorted(ENDLESS))
def test_an_answer_without_end_takes_bounded_memory(target: Target, upstream: Upstream, name: str) -> None:
    """The client of the whole one is told so; the stream's one leaves after 16 MiB."""
    head, piece, stream = ENDLESS[name]
    path = "/v1/messages" if name == "pings" else "/v1/chat/completions"
    body = json.dumps({"stream": stream, "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}).encode()
    target.forget_peak()
    before = target.rss_bytes
    with upstream.acting(endlessly(head, piece, 400 * MIB)), target.connect() as sock:
        sock.sendall(request("POST", path, f"Content-Length: {len(body)}") + body)
        if not stream:
            answer = read_answer(sock)
            assert answer.status in (400, 502) and answer.error["message"], answer
        else:
            got, began = 0, time.monotonic()
            while got < 16 * MIB:
                more = sock.recv(1 << 20)
                if not more:
                    break
                got += len(more)
                assert time.monotonic() - began < PATIENCE_S
    grown = target.peak_bytes - before
    assert grown < 200 * MIB, f"{grown >> 20} MiB"


def test_counters_have_known_words_only(target: Target) -> None:
    """After all that: a name that the engine makes up would be a time series each, or break the page."""
    url = urllib.request.Request(f"http://127.0.0.1:{target.port}/metrics", headers={"Authorization": f"Bearer {KEY}"})
    with contextlib.closing(urllib.request.urlopen(url, timeout=PATIENCE_S)) as page:
        text = page.read().decode()
    finishes = {line.split('finish="')[1].split('"')[0] for line in text.splitlines() if 'finish="' in line}
    assert finishes and finishes <= {
        "stop", "length", "tool_calls", "repetition", "error", "engine_lost", "client_gone", "unknown", "other",
        "content_filter", "abort",
    }, finishes  # fmt: skip
