"""Attack: 10,000 connections that ask nothing, and as many on a gateway with few descriptors.

What the client sees: nothing; requests are answered meanwhile, and a neighbour's kept connection stays open.
What the operator sees: one line a minute that connections are as many as may be.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from dsv41_supervisor.gateway import door

from tests.gateway_abuse.target import PATIENCE_S, Target, Upstream, gateway, read_answer, request

N_CONNECTIONS = 10_000
BYTES_A_CONNECTION = 32 << 10


@contextlib.contextmanager
def many_files(n: int) -> Iterator[None]:
    """This process holds the other ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, n), max(hard, n)))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def connected(target: Target, n: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections that stay as they are; those that the gateway closes meanwhile are not missed."""
    held: list[socket.socket] = []
    try:
        for _ in range(n):
            sock = target.connect()
            held.append(sock)
            if first:
                with contextlib.suppress(OSError):
                    sock.sendall(first)
        yield held
    finally:
        for sock in held:
            sock.close()


def n_alive(held: list[socket.socket]) -> int:
    alive = 0
    for sock in held:
        sock.setblocking(False)
        try:
            sock.recv(1)
        except BlockingIOError:
            alive += 1
        except OSError:
            pass
    return alive


def test_ten_thousand_idle_connections_cost_bounded_memory_and_shut_nobody_out(target: Target) -> None:
    before = target.rss_bytes
    with many_files(N_CONNECTIONS + 500), socket.create_connection(
        ("127.0.0.1", target.port), PATIENCE_S, source_address=("127.0.0.9", 0)
    ) as neighbour:
        neighbour.sendall(request("GET", "/v1/models"))
        assert read_answer(neighbour).status == 200
        # Half a head each: they wait as requests, not as newcomers.
        with connected(target, N_CONNECTIONS, b"GET /v1/models HTTP/1.1\r\nHost") as held:
            target.must_serve()
            assert target.n_open < door.MAX_CONNECTIONS + 100
            grown = target.rss_bytes - before
            assert grown < door.MAX_CONNECTIONS * BYTES_A_CONNECTION, f"{grown >> 20} MiB for idle connections"
            neighbour.sendall(request("GET", "/v1/models"))
            assert read_answer(neighbour).status == 200, "one of another address lost its connection"
            assert 0 < n_alive(held) <= door.MAX_CONNECTIONS
        assert target.said().count("as many as may be") == 1


def test_a_gateway_with_few_descriptors_keeps_some_for_itself_and_does_not_spin(
    tmp_path: Path, upstream: Upstream
) -> None:
    with gateway(tmp_path, upstream, n_files=256) as target, connected(target, 600):
        for _ in range(3):
            target.must_serve()
        assert target.n_open < 200
        began, spent = time.monotonic(), target.cpu_s
        while time.monotonic() - began < 1:
            target.must_serve()
            time.sleep(0.2)
        assert target.cpu_s - spent < 0.5, "it works without being asked"


def test_a_burst_that_has_waited_is_taken_in_pieces_and_its_last_one_is_answered(
    tmp_path: Path, upstream: Upstream
) -> None:
    """As many as could take every descriptor in one turn of the event loop: `accept` would then fail for everybody."""
    with gateway(tmp_path, upstream, n_files=256) as target:
        target.process.send_signal(signal.SIGSTOP)
        try:
            with connected(target, 600) as held, target.connect() as last:
                last.sendall(request("GET", "/v1/models"))
                target.process.send_signal(signal.SIGCONT)
                assert read_answer(last).status == 200
                target.must_serve()
                assert 0 < n_alive(held) <= target.n_open < 200
        finally:
            target.process.send_signal(signal.SIGCONT)
