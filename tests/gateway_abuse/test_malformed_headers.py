"""Attack: heads that are no HTTP, that two parsers read differently, or that name what is not for users.

What the client sees: a 4xx in JSON, or a closed connection; never another request's answer, never an operator's route.
What the operator sees: nothing.
"""

from __future__ import annotations

import contextlib
import json

import pytest

from tests.gateway_abuse.target import KEY, Target, read_answer, request

_BODY = b'{"messages": [{"role": "user", "content": "x"}]}'
_SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n\r\n"


def chat(*head: str, body: bytes = _BODY, version: str = "1.1") -> bytes:
    return request("POST", "/v1/chat/completions", *head, version=version) + body


def must_be_ours(raw: bytes, answer: object) -> None:
    """An error of ours: JSON in our shape, with no part of what was sent and no word of what made it."""
    assert answer is not None, raw[:200]
    assert answer.status < 500 and answer.headers["server"] == "dsv41", (raw[:200], answer)
    assert set(answer.error) == {"message", "type", "param", "code"}, (raw[:200], answer)
    assert KEY.encode() not in answer.body, answer


N = len(_BODY)
AMBIGUOUS = {
    "length-and-chunked": chat(f"Content-Length: {N}", "Transfer-Encoding: chunked", body=b"0\r\n\r\n" + _SMUGGLED),
    "chunked-and-length": chat("Transfer-Encoding: chunked", "Content-Length: 5", body=b"0\r\n\r\n" + _SMUGGLED),
    "two-lengths": chat("Content-Length: 2", f"Content-Length: {N}", body=b"{}" + _SMUGGLED),
    "two-lengths-in-one": chat(f"Content-Length: 2, {N}", body=b"{}" + _SMUGGLED),
    "chunked-twice": chat("Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n" + _SMUGGLED),
    "chunked-not-last": chat("Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n" + _SMUGGLED),
    "chunked-of-1.0": chat("Transfer-Encoding: chunked", body=b"0\r\n\r\n" + _SMUGGLED, version="1.0"),
    "chunked-behind-a-tab": chat("Transfer-Encoding:\x0bchunked", body=b"0\r\n\r\n" + _SMUGGLED),
    "space-before-colon": chat("Transfer-Encoding : chunked", body=b"0\r\n\r\n" + _SMUGGLED),
    "negative-length": chat("Content-Length: -1"),
    "signed-length": chat(f"Content-Length: +{N}"),
    "hexadecimal-length": chat("Content-Length: 0x10"),
    "length-of-other-digits": chat("Content-Length: \xb2"),
    "length-without-end": chat("Content-Length: " + "9" * 400),
    "folded-header": chat(f"Content-Length: {N}", "X-Folded: a\r\n b"),
    "nul-in-a-header": chat(f"Content-Length: {N}", "X-Nul: a\x00b"),
    "bare-cr-in-a-header": chat(f"Content-Length: {N}", "X-Cr: a\rTransfer-Encoding: chunked"),
    "nul-in-a-name": chat(f"Content-Length: {N}", "X\x00Nul: a"),
    "no-colon": chat(f"Content-Length: {N}", "no colon"),
    "empty-name": chat(f"Content-Length: {N}", ": a"),
    "a-header-of-a-megabyte": chat(f"Content-Length: {N}", "X-Long: " + "a" * (1 << 20)),
    "10,000-headers": chat(f"Content-Length: {N}", *(f"X-{i}: y" for i in range(10_000))),
    "a-line-of-a-megabyte": request("GET", "/v1/models?" + "a" * (1 << 20)),
    "bad-method": request("BREW", "/v1/models"),
    "method-with-a-nul": request("GE\x00T", "/v1/models"),
    "lower-case-method": request("get", "/v1/models"),
    "http-9.9": request("GET", "/v1/models", version="9.9"),
    "http-2-preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 9,
    "tls-hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    "binary": bytes(range(256)) * 4,
    "no-path": b"GET HTTP/1.1\r\nHost: x\r\n\r\n",
    "space-in-the-path": request("GET", "/v1/mod els"),
    "nul-in-the-path": request("GET", "/v1/\x00models"),
}


@pytest.mark.parametrize("name", sorted(AMBIGUOUS))
def test_a_head_that_can_be_read_in_two_ways_is_refused_and_what_follows_it_is_not_run(
    target: Target, name: str
) -> None:
    received = b""
    with target.connect() as sock, contextlib.suppress(OSError):
        sock.sendall(AMBIGUOUS[name])
        sock.settimeout(2)  # an error of ours ends its connection at once
        while more := sock.recv(1 << 16):
            received += more
    if len(AMBIGUOUS[name]) > 64 << 10 and not received:
        return  # it closed before all was sent, and the answer was lost with that
    assert received.count(b"\r\nContent-Length:") == 1, f"a request was smuggled in: {received!r}"
    assert b'"object"' not in received, received
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.split(b" ")[1].startswith(b"4") and b"Server: dsv41" in head, received
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}, received
    assert KEY.encode() not in received


def test_a_head_without_end_is_closed_and_not_kept(target: Target) -> None:
    target.forget_peak()
    before, sent = target.rss_bytes, 0
    with target.connect() as sock, contextlib.suppress(OSError):
        sock.sendall(b"GET /v1/models HTTP/1.1\r\n")
        while sent < 64 << 20:
            sock.sendall(b"X-Header: value\r\n" * 500)
            sent += 500 * 17
    assert sent < 8 << 20 and target.peak_bytes - before < 16 << 20


def test_http_0_9_gets_no_more_than_an_error(target: Target) -> None:
    """It has no headers, so no key."""
    with target.connect() as sock:
        sock.sendall(b"GET /v1/models\r\n\r\n")
        assert sock.recv(1 << 16).split(b" ")[1] in (b"400", b"401")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../flush_cache", "/v1/..%2fflush_cache", "/%2e%2e/flush_cache", "//flush_cache", "/./flush_cache",
        "/flush_cache", "/flush%5fcache", "/flush_cache/", "/FLUSH_CACHE", "/flush_cache%00", "/flush_cache;a=b",
        "/v1/chat/completions/../../../flush_cache", "/v1%2fmodels/../flush_cache", "/abort_request",
        "/get_server_info", "/v1/files", "/v1/models/..", "/\\flush_cache", "*", "/%ff%fe", "/%", "/\xff",
        "http://elsewhere/flush_cache", "http://127.0.0.1:1/v1/loads", "//elsewhere/flush_cache", "/v1/messages/../x",
        "/" + "a/" * 4000, "/v1/models?" + "a=b&" * 3000, "/v1/models#flush_cache",
    ],
    ids=lambda path: path[:40],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_spelling_of_a_path_reaches_what_is_not_for_users(target: Target, method: str, path: str) -> None:
    before = target.upstream.requests
    raw = request(method, path, "Content-Length: 2") + b"{}"
    answer = target.send(raw)
    assert answer is None or answer.status in (200, 400, 404, 405), answer
    if answer is not None and answer.status == 200:
        assert path.startswith("/v1/models"), (path, answer)
    elif answer is not None:
        said = json.loads(answer.body)
        assert isinstance(said["error"]["message"], str), said
    assert target.upstream.requests == before, f"{path} came to the engine"


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/health", "/nothing", "*", "x:80"])
def test_other_methods_are_told_so_and_the_connection_goes_on(target: Target, method: str, path: str) -> None:
    with target.connect() as sock:
        sock.sendall(request(method, path))
        if method == "HEAD":
            sock.sendall(request("GET", "/v1/models"))
            first = b""
            while b"\r\n\r\n" not in first:
                first += sock.recv(1)
            assert first.split(b" ")[1] in (b"400", b"404", b"405"), first
            if not first.startswith(b"HTTP/1.0 400"):  # that could not be read at all, and nobody knows of HEAD
                assert read_answer(sock).status == 200, "HEAD had a body"
            return
        answer = read_answer(sock)
        assert answer.status in (400, 404, 405), answer
        assert set(answer.error) == {"message", "type", "param", "code"}, answer
        if answer.status == 405:
            assert answer.headers["allow"], answer


def test_pipelined_requests_are_answered_in_their_order_and_a_flood_of_them_waits_outside(target: Target) -> None:
    good = request("GET", "/v1/models") + request("GET", "/nothing") + chat(f"Content-Length: {N}")
    with target.connect() as sock:
        sock.sendall(good * 5)
        with sock.makefile("rb") as file:
            statuses = []
            for _ in range(15):
                statuses.append(int(file.readline().split(b" ")[1]))
                length = 0
                while line := file.readline().strip():
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                file.read(length)
    assert statuses == [200, 404, 200] * 5
    target.forget_peak()
    before = target.rss_bytes
    with target.connect() as sock:
        sock.settimeout(1)
        sent = 0
        flood = request("GET", "/v1/models") * 1000
        try:
            while sent < 64 << 20:  # and nothing is read
                sent += sock.send(flood)
        except OSError:
            pass  # it takes no more, or has closed
        assert sent < 64 << 20, "it took requests without end from a client that reads no answers"
    assert target.peak_bytes - before < 16 << 20


@pytest.mark.parametrize(
    "head",
    [
        "Content-Type: application/json; charset=utf-16", "Content-Type: application/json;;;=\"", "Content-Type: \xff",
        "Content-Type: application/json\tx", "Content-Type: " + "a" * 9000, "Content-Type: ;", "Content-Type:",
        "Expect: 100-continue", "Expect: anything", "Upgrade: h2c", "Connection: close, keep-alive, upgrade",
        "Accept: " + "\xe9" * 500, "Cookie: " + "a=" * 5000, "Authorization: Bearer \xff\xfe", "Authorization: ",
        "Authorization: Bearer", "x-api-key: \xff", "Host: a, b", "X-Forwarded-For: " + "1.1.1.1, " * 900,
        "Range: bytes=0-0", "If-None-Match: *", "Content-Encoding: nothing", "Content-Encoding: identity",
        "Sec-WebSocket-Key: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13",
    ],
    ids=lambda head: head[:40],
)  # fmt: skip
def test_odd_headers_are_refused_in_words_or_ignored(target: Target, head: str) -> None:
    with target.connect() as sock:
        sock.sendall(request("POST", "/v1/chat/completions", head, f"Content-Length: {N}") + _BODY)
        answer = read_answer(sock)
    assert answer.status in (200, 400, 401, 413, 415), answer
    if answer.status != 200:
        must_be_ours(head.encode(), answer)
