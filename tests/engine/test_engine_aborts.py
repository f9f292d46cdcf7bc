"""A client that left: SGLang stops working for it, on every route, and knows each request by the gateway's name."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.engines import Engine
from tests.engine.gateway import KEY, Fleet, gateway

ALONE_S = 60.0
"""Bound of SGLang being idle again. It takes 0.1 to 0.5 s; the answers would take some minutes."""
N_TOKENS = 3500
HI = [{"role": "user", "content": "Tell me everything."}]
LONG = {"max_tokens": N_TOKENS, "ignore_eos": True}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": LONG | {"messages": HI},
    "/v1/completions": LONG | {"prompt": "Everything is"},
    # These two know no ignore_eos; the demo's model does not end by itself either.
    "/v1/responses": {"max_output_tokens": N_TOKENS, "input": "Tell me everything."},
    "/v1/messages": {"max_tokens": N_TOKENS, "messages": HI},
}
every_route = pytest.mark.parametrize("path", ROUTES)


@pytest.fixture(scope="module")
def fleet(stock_tp1: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with gateway(stock_tp1.ranks[0].port, tmp_path_factory.mktemp("gateway"), context_length=4096) as fleet:
        yield fleet


def ask(fleet: Fleet, path: str, **more: Any) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(fleet.url.removeprefix("http://"), timeout=120)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(ROUTES[path] | more), headers)
    return connection


def n_requests(engine: Engine) -> int:
    with engine._open("/v1/loads", None) as response:
        loads = json.load(response)["loads"]
    return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)


def until(engine: Engine, n: int) -> None:
    deadline = time.monotonic() + ALONE_S
    while (seen := n_requests(engine)) != n:
        assert time.monotonic() < deadline, f"SGLang has {seen} requests after {ALONE_S:g} s, not {n}"
        time.sleep(0.05)


@every_route
@pytest.mark.parametrize("stream", [False, True])
def test_sglang_is_idle_again_when_the_client_has_left(
    stock_tp1: Engine, fleet: Fleet, path: str, stream: bool
) -> None:
    until(stock_tp1, 0)
    connection = ask(fleet, path, stream=stream)
    until(stock_tp1, 1)
    connection.close()
    until(stock_tp1, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_sglang_is_idle_again_when_the_client_of_two_answers_has_left(
    stock_tp1: Engine, fleet: Fleet, stream: bool
) -> None:
    """With n > 1 it makes up names that it tells nobody, and has to notice by itself."""
    until(stock_tp1, 0)
    connection = ask(fleet, "/v1/chat/completions", stream=stream, n=2)
    until(stock_tp1, 2)
    connection.close()
    until(stock_tp1, 0)


@every_route
def test_sglang_stops_a_request_by_the_name_that_its_client_was_told(
    stock_tp1: Engine, fleet: Fleet, path: str
) -> None:
    """Without the name, closing the connection stops a whole answer only when SGLang next looks: after up to 4 s."""
    connection = ask(fleet, path, stream=True)
    response = connection.getresponse()
    assert response.status == 200 and response.readline()
    until(stock_tp1, 1)
    name = response.headers["x-request-id"]
    with stock_tp1._open("/abort_request", {"rid": f"resp_{name}" if path == "/v1/responses" else name}):
        pass
    until(stock_tp1, 0)
    assert response.read().endswith(b"\n\n")  # the connection stood, and the stream has an end
    connection.close()
