"""Attack: chunked encodings with broken, negative and huge sizes, extensions, trailers, and an early end.

What the client sees: its request served where the encoding is right, else a 400, or a closed connection.
What the operator sees: nothing.
"""

from __future__ import annotations

import contextlib
import socket

import pytest

from tests.gateway_abuse.target import KEY, Answer, Target, read_answer, request

_BODY = b'{"messages": [{"role": "user", "content": "x"}]}'
_HEAD = request("POST", "/v1/chat/completions", "Transfer-Encoding: chunked")
_ONE = b"%x\r\n" % len(_BODY) + _BODY + b"\r\n"
_END = b"0\r\n\r\n"

GOOD = {
    "one-chunk": _ONE + _END,
    "a-byte-a-chunk": b"".join(b"1\r\n%c\r\n" % byte for byte in _BODY) + _END,
    "leading-zeros": b"0000%x\r\n" % len(_BODY) + _BODY + b"\r\n" + _END,
    "upper-case": _ONE.replace(b"%x" % len(_BODY), b"%X" % len(_BODY), 1) + _END,
    "extension": b"%x;a=b\r\n" % len(_BODY) + _BODY + b"\r\n0;c\r\n\r\n",
    "trailer": _ONE + b"0\r\nX-Trailer: a\r\n\r\n",
}
BAD = {
    "no-size": b"\r\n" + _BODY + b"\r\n" + _END,
    "no-hexadecimal": b"zz\r\n" + _BODY + b"\r\n" + _END,
    "negative": b"-1\r\n" + _BODY + b"\r\n" + _END,
    "signed": b"+%x\r\n" % len(_BODY) + _BODY + b"\r\n" + _END,
    "0x": b"0x%x\r\n" % len(_BODY) + _BODY + b"\r\n" + _END,
    "space": b" %x\r\n" % len(_BODY) + _BODY + b"\r\n" + _END,
    "of-64-bits": b"ffffffffffffffff\r\n" + _BODY,
    "of-65-bits": b"1%016x\r\n" % len(_BODY) + _BODY + b"\r\n" + _END,
    "size-without-end": b"0" * (1 << 20),
    "extension-without-end": b"5;" + b"a" * (1 << 20),
    "extension-with-a-line-feed": b"5;\nabcd\r\n" + _BODY + _END,
    "too-short": b"5\r\n" + _BODY + b"\r\n" + _END,
    "too-long": b"%x\r\n" % (len(_BODY) + 9) + _BODY + b"\r\n" + _END,
    "line-feeds-only": b"%x\n" % len(_BODY) + _BODY + b"\n0\n\n",
    "no-line-end-behind-the-data": b"%x\r\n" % len(_BODY) + _BODY + _END,
    "ends-in-a-chunk": _ONE[:20],
    "ends-before-the-last": _ONE,
    "ends-in-a-size": _ONE + b"0",
    "nul": b"%x\x00\r\n" % len(_BODY) + _BODY + b"\r\n" + _END,
    "trailers-without-end": _ONE + b"0\r\n" + b"X-T: a\r\n" * 200_000,
    "a-long-trailer": _ONE + b"0\r\nX-T: " + b"a" * (1 << 20),
    "a-broken-trailer": _ONE + b"0\r\n\x00\x01:\r\n\r\n",
}
_ENDS = {"ends-in-a-chunk", "ends-before-the-last", "ends-in-a-size", "too-long", "of-64-bits", "size-without-end",
         "extension-without-end"}  # fmt: skip
"""More could come, and the client ends: that a slow one has two minutes for it is in test_slow_clients.py."""


def ask(target: Target, chunks: bytes, *, ends: bool = False) -> Answer | None:
    """None when it was closed without an answer, as a client is that ends before its request does."""
    with target.connect() as sock, contextlib.suppress(EOFError, ConnectionError):
        with contextlib.suppress(ConnectionError):
            sock.sendall(_HEAD + chunks)
        if ends:
            sock.shutdown(socket.SHUT_WR)
        return read_answer(sock)
    return None


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_right_encoding_is_served(target: Target, name: str) -> None:
    answer = ask(target, GOOD[name])
    assert answer is not None and answer.status == 200, answer


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_broken_encoding_is_refused(target: Target, name: str) -> None:
    before = target.upstream.requests
    answer = ask(target, BAD[name], ends=name in _ENDS)
    if answer is not None:
        assert 400 <= answer.status < 500 and answer.error["message"], answer
        assert KEY.encode() not in answer.body
    assert target.upstream.requests == before, "half a body came to the engine"


def test_trailers_change_nothing(target: Target) -> None:
    """A key in a trailer is none, and one there takes nothing from the one in the head."""
    for head, trailer, status in (
        (request("POST", "/v1/chat/completions", "Transfer-Encoding: chunked", key=None), KEY.encode(), 401),
        (_HEAD, b"x", 200),
    ):
        raw = head + _ONE + b"0\r\nAuthorization: Bearer " + trailer + b"\r\n\r\n"
        answer = target.send(raw)
        assert answer is not None and answer.status == status, answer


def test_a_million_chunks_of_a_byte_are_read_in_time_and_little_memory(target: Target) -> None:
    target.forget_peak()
    before = target.rss_bytes
    text = b'{"messages": [{"role": "user", "content": "' + b"a" * 500_000 + b'"}]}'
    answer = ask(target, b"".join(b"1\r\n%c\r\n" % byte for byte in text) + _END)
    assert answer is not None and answer.status == 200, answer
    assert target.peak_bytes - before < 32 << 20
