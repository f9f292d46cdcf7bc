"""The gateway's answer, from real sockets: good, unavailable, somebody else's, silent, gone."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest
from dsv41_supervisor.doctor.read_gateway import read_gateway
from dsv41_supervisor.settings import Settings, parse

from tests.unit.fleets import good


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def _settings(server: socket.socket, address: str = "127.0.0.1") -> Settings:
    document = good()
    document["gateway"] = {"address": address, "port": server.getsockname()[1]}
    return parse(json.dumps(document))


def _answer(server: socket.socket, *pieces: bytes) -> threading.Thread:
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            for piece in pieces:
                connection.sendall(piece)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("answer", "status", "ours"),
    [
        (b'HTTP/1.1 200 OK\r\n\r\n{"status": "ok"}', 200, True),
        (b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"status": "unavailable"}', 503, True),
        (b"HTTP/1.1 404 Not Found\r\n\r\n<html>", 404, False),
        (b"HTTP/1.1 200 OK\r\n\r\n[1]", 200, False),
    ],
)
def test_an_answer_is_read_with_whose_it_is(listener: socket.socket, answer: bytes, status: int, ours: bool) -> None:
    thread = _answer(listener, answer[:7], answer[7:])
    said = read_gateway(_settings(listener, "0.0.0.0"), 20)
    thread.join(20)
    assert (said.problem, said.status, said.ours) == (None, status, ours)


def test_what_is_no_http_is_said(listener: socket.socket) -> None:
    thread = _answer(listener, b"SSH-2.0-OpenSSH_9.9\r\n")
    assert read_gateway(_settings(listener), 20).problem == "does not speak HTTP"
    thread.join(20)


def test_a_gateway_that_takes_the_connection_and_never_answers_is_given_up(listener: socket.socket) -> None:
    # The kernel takes the connection; nobody ever reads it.
    assert read_gateway(_settings(listener), 0.3).problem == "does not answer within 0.3 s"


def test_a_gateway_that_is_gone_is_said(listener: socket.socket) -> None:
    settings = _settings(listener)
    listener.close()
    said = read_gateway(settings, 20)
    assert said.problem == "does not answer (Connection refused)"
    assert said.where == f"http://127.0.0.1:{settings.gateway.port}/health"
