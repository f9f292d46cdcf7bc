"""Attack: bodies of 100 MB, with and without their length, many at once, of a million values, and gzip bombs.

What the client sees: 413 before it has sent the body where its head says how long it is, and as soon as the limit is
reached where it does not; 400 for more values than any prompt has; 503 while others' large bodies fill the room.
What the operator sees: nothing; memory stays within a few bodies' size.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
import zlib
from collections.abc import Callable

import pytest

from tests.gateway_abuse.target import Answer, Target, read_answer, request, until

MIB = 1 << 20
LIMIT = 64 * MIB
BODY = 100 * MIB
_START = b'{"messages": [{"role": "user", "content": "'


def chunked(path: str, *head: str) -> bytes:
    return request("POST", path, "Transfer-Encoding: chunked", *head)


def send_chunks(sock: socket.socket, piece: bytes, n: int) -> int:
    """Bytes that were taken until it was answered or closed."""
    framed = b"%x\r\n" % len(piece) + piece + b"\r\n"
    sent = 0
    try:
        for _ in range(n):
            sock.sendall(framed)
            sent += len(piece)
            sock.setblocking(False)
            try:
                if sock.recv(1, socket.MSG_PEEK):
                    break
            except BlockingIOError:
                pass
            finally:
                sock.settimeout(30)
    except OSError:
        pass
    return sent


def must_be_too_large(answer: Answer) -> None:
    assert answer.status == 413 and answer.error["code"] == "body_too_large", answer


def test_a_length_above_the_limit_is_refused_before_the_body_is_sent(target: Target) -> None:
    for length in (LIMIT + 1, BODY, 10**18):
        with target.connect() as sock:
            sock.sendall(request("POST", "/v1/chat/completions", f"Content-Length: {length}", "Expect: 100-continue"))
            must_be_too_large(read_answer(sock))


def test_nothing_is_read_for_a_request_without_a_key(target: Target) -> None:
    with target.connect() as sock:
        sock.sendall(request("POST", "/v1/chat/completions", f"Content-Length: {LIMIT}", key=None))
        assert read_answer(sock).status == 401


def test_a_body_without_a_length_is_cut_at_the_limit(target: Target) -> None:
    target.forget_peak()
    before = target.rss_bytes
    with target.connect() as sock:
        sock.sendall(chunked("/v1/chat/completions"))
        sent = send_chunks(sock, b"a" * MIB, BODY // MIB)
        assert LIMIT - MIB <= sent < LIMIT + 16 * MIB, f"{sent >> 20} MiB were taken"
        must_be_too_large(read_answer(sock))
    assert target.peak_bytes - before < LIMIT * 1.5


def at_once(n: int, one: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "hangs"


def test_many_large_bodies_at_once_fill_no_more_than_their_room(target: Target) -> None:
    """Ten send 60 MiB each and keep the end back. Small requests are served meanwhile."""
    target.forget_peak()
    before = target.rss_bytes
    socks = [target.connect() for _ in range(10)]
    try:
        for sock in socks:
            sock.sendall(chunked("/v1/chat/completions"))
        at_once(10, lambda i: send_chunks(socks[i], b"a" * MIB, 60) and None)
        target.must_serve()
        assert target.peak_bytes - before < 3 * LIMIT
        answers = []
        for sock in socks:
            sock.setblocking(False)
            try:
                if sock.recv(1, socket.MSG_PEEK):
                    sock.settimeout(30)
                    answers.append(read_answer(sock))
            except OSError:
                pass  # still taken, or closed after its answer
        assert any(a.status == 503 and a.error["code"] == "too_many_large_bodies" for a in answers), answers
        assert all(a.headers["retry-after"] for a in answers)
    finally:
        for sock in socks:
            sock.close()
    until(lambda: target.post("/v1/tokenize", _TEXT).status == 200, "the room is given back")


_TEXT = b'{"prompt": "' + b"a" * (8 * MIB) + b'"}'
_MANY = {
    "lists": b"[],", "objects": b"{},", "texts": b'"",', "numbers": b"1,", "nested": b"[[[[[]]]]],",
    "pairs": b'{"a":1},',
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(_MANY))
def test_more_values_than_any_prompt_has_are_refused_unread(target: Target, kind: str) -> None:
    one = _MANY[kind]
    raw = _START + b'x"}], "metadata": [' + one * (40 * MIB // len(one)) + b"1]}"
    target.forget_peak()
    before, spent = target.rss_bytes, target.cpu_s
    answer = target.post("/v1/chat/completions", raw)
    assert answer.status == 400 and answer.error["code"] == "too_many_values", answer
    assert target.peak_bytes - before < 2 * len(raw)
    assert target.cpu_s - spent < 5


def test_a_prompt_of_a_million_token_ids_is_served(target: Target) -> None:
    raw = json.dumps({"prompt": [i % 100_000 for i in range(1_000_000)], "max_tokens": 5}).encode()
    assert target.post("/v1/completions", raw).status == 200


def _bomb(kind: str, size: int) -> bytes:
    if kind == "gzip":
        return gzip.compress(bytes(size), 1)
    return zlib.compress(bytes(size), 1)


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
def test_a_bomb_is_cut_at_the_limit(target: Target, kind: str) -> None:
    bomb = _bomb(kind, 160 * MIB)
    assert len(bomb) < MIB
    target.forget_peak()
    before = target.rss_bytes
    must_be_too_large(target.post("/v1/chat/completions", bomb, f"Content-Encoding: {kind}"))
    assert target.peak_bytes - before < 2 * LIMIT


@pytest.mark.parametrize("kind", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x"])
def test_broken_encodings_are_refused_in_words(target: Target, kind: str) -> None:
    for raw in (b"\x1f\x8b\x08\x00garbage", b"", _bomb("gzip", 1000)[:-12], b"a" * 1000):
        answer = target.post("/v1/chat/completions", raw, f"Content-Encoding: {kind}")
        assert answer.status in (400, 415) and answer.error["message"], (raw[:20], answer)


def test_a_compressed_request_is_served(target: Target) -> None:
    raw = gzip.compress(_START + b'x"}]}')
    assert target.post("/v1/chat/completions", raw, "Content-Encoding: gzip").status == 200
