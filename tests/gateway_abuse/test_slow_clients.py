"""Attack: clients that send a byte at a time, in the head or in the body, and clients that do not read their answer.

What the client sees: it is closed, or told 408, when its time is over. Everybody else is served meanwhile.
What the operator sees: nothing. The times are shortened here; `supervisor/GATEWAY.md` has the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway_abuse.target import PATIENCE_S, PROMPT, Target, Upstream, gateway, request, whole
from tests.harness.certificates import make_certificate

FIRST_S, STALLED_S, BODY_S, IDLE_S, LINGER_S = 1.5, 2.5, 1.5, 2.0, 1.0
N_SLOW = 40
SHORTER = f"""
from dsv41_supervisor.gateway import config, door, listening
door.FIRST_S, door.STALLED_S, door.LOOK_S = {FIRST_S}, {STALLED_S}, 0.2
listening.HANDSHAKE_S = {FIRST_S}
listening.IDLE_CONNECTION_S = {IDLE_S}
listening.LINGER_S = {LINGER_S}
times = config.Timings.__init__
times.__defaults__ = tuple({BODY_S} if time == 120.0 else time for time in times.__defaults__)
assert config.Timings().body_s == {BODY_S}
"""
_CHAT = b'{"stream": true, "messages": [{"role": "user", "content": "' + PROMPT.encode() + b'"}]}'


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Target]:
    with gateway(tmp_path_factory.mktemp("impatient"), upstream, shorter=SHORTER) as running:
        yield running


def drip(target: Target, raw: bytes, every_s: float = 0.1) -> float:
    """Seconds until `N_SLOW` clients that send a byte each time are all closed; others are served meanwhile."""
    began = time.monotonic()
    slow = [target.connect() for _ in range(N_SLOW)]
    try:
        for sock in slow:
            sock.setblocking(False)
        sent = 0
        while slow:
            assert time.monotonic() - began < PATIENCE_S, f"{len(slow)} are still connected"
            for sock in list(slow):
                try:
                    if sent < len(raw):
                        sock.send(raw[sent : sent + 1])
                    if sock.recv(4096) == b"":
                        raise ConnectionResetError
                except BlockingIOError:
                    continue
                except OSError:
                    slow.remove(sock)
                    sock.close()
            sent += 1
            target.must_serve()
            time.sleep(every_s)
        return time.monotonic() - began
    finally:
        for sock in slow:
            sock.close()


def test_heads_byte_by_byte_are_closed_in_time(impatient: Target) -> None:
    took_s = drip(impatient, b"GET /v1/models HTTP/1.1\r\nX-Slow: " + b"a" * 4000)
    assert took_s >= FIRST_S - 0.5


def test_bodies_byte_by_byte_are_closed_in_time(impatient: Target) -> None:
    head = request("POST", "/v1/chat/completions", "Content-Length: 100000")
    began = time.monotonic()
    with impatient.connect() as sock:
        sock.sendall(head)
        sock.settimeout(0.1)
        received = b""
        while b"\r\n\r\n" not in received:
            assert time.monotonic() - began < PATIENCE_S, "the body may take for ever"
            with contextlib.suppress(TimeoutError):
                sock.sendall(b"a")
                received += sock.recv(4096)
            impatient.must_serve()
    assert received.split(b" ")[1] == b"408", received
    assert time.monotonic() - began >= BODY_S


def drip_until_closed(sock: socket.socket) -> None:
    """A byte every tenth of a second, until the other side has had enough."""
    sock.settimeout(0.1)
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while True:
            assert time.monotonic() - began < PATIENCE_S, "still connected"
            with contextlib.suppress(TimeoutError):
                sock.sendall(b"a")
                if not sock.recv(4096):
                    break


def test_bodies_that_nobody_reads_are_not_waited_for_long(impatient: Target) -> None:
    """Refused by its head alone, the client drips its body on."""
    with impatient.connect() as sock:
        sock.sendall(request("POST", "/v1/chat/completions", "Content-Length: 100000", key=None))
        drip_until_closed(sock)
    impatient.must_serve()


def test_a_second_head_byte_by_byte_is_closed_in_time(impatient: Target) -> None:
    with impatient.connect() as sock:
        sock.sendall(request("GET", "/v1/models"))
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        began = time.monotonic()
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nX-Slow: ")
        drip_until_closed(sock)
    assert time.monotonic() - began >= IDLE_S - 0.5


ended: list[float] = []
"""When the gateway closed a stream of `endless`."""


async def endless(_path: str, body: dict[str, Any], out: asyncio.StreamWriter) -> None:
    """A stream that never ends, for the client that does not read; the others get their answer."""
    if not body.get("stream"):
        out.write(whole(b'{"choices": [{"message": {"content": "42"}}]}'))
        return
    out.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "' + b"x" * 1000 + b'"}}]}\n\n'
    try:
        while True:
            out.write(event * 8)
            await out.drain()
    finally:
        ended.append(time.monotonic())


def small_window(target: Target) -> socket.socket:
    """A client that takes only as much as the smallest buffer holds."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.settimeout(PATIENCE_S)
    sock.connect(("127.0.0.1", target.port))
    return sock


@pytest.mark.parametrize("reads", [0, 1], ids=["nothing", "a byte at a time"])
def test_a_stream_that_is_not_read_is_cut_and_its_request_ends(
    impatient: Target, upstream: Upstream, reads: int
) -> None:
    ended.clear()
    began = time.monotonic()
    with upstream.acting(endless), small_window(impatient) as sock:
        sock.sendall(request("POST", "/v1/chat/completions", f"Content-Length: {len(_CHAT)}") + _CHAT)
        assert sock.recv(12) == b"HTTP/1.1 200"
        while not ended:
            assert time.monotonic() - began < PATIENCE_S, "its request is still with the engine"
            if reads:
                with contextlib.suppress(ConnectionError):
                    sock.recv(1)
            impatient.must_serve()
            time.sleep(0.05)
    assert time.monotonic() - began >= STALLED_S - 0.5
    assert impatient.peak_bytes < 100 << 20, "the stream was held in memory"


def test_a_stream_that_is_read_slowly_goes_on(impatient: Target, upstream: Upstream) -> None:
    """For longer than a stalled one has."""
    with upstream.acting(endless), impatient.connect() as sock:
        sock.sendall(request("POST", "/v1/chat/completions", f"Content-Length: {len(_CHAT)}") + _CHAT)
        began = time.monotonic()
        while time.monotonic() - began < STALLED_S * 1.4:
            wanted = 64 << 10
            while wanted > 0:
                got = sock.recv(wanted)
                assert got, "cut while it was being read"
                wanted -= len(got)
            time.sleep(0.1)


def test_tls_that_is_never_agreed_on_is_closed_in_time(tmp_path: Path, upstream: Upstream) -> None:
    certificate, key = make_certificate(tmp_path, "head")
    tls = {"certificate": str(certificate), "key_file": str(key)}
    with gateway(tmp_path, upstream, shorter=SHORTER, tls=tls) as target:
        began = time.monotonic()
        with target.connect() as silent, target.connect() as garbled:
            garbled.sendall(b"GET / HTTP/1.1\r\n\r\n")
            for sock in (silent, garbled):
                with contextlib.suppress(ConnectionResetError):
                    while sock.recv(1 << 16):
                        pass
        assert time.monotonic() - began >= FIRST_S - 0.5
        target.must_be_quiet()
