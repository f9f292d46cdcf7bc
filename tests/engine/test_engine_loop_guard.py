"""The gateway's own look for loops, and the figures it passes on, before the real SGLang without any adapter."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.engines import Engine
from tests.engine.gateway import FLEET_KEY, KEY, Fleet, gateway

N_TOKENS = 3500
ALONE_S = 60.0
FOR_EVER = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": N_TOKENS, "ignore_eos": True}


@pytest.fixture(scope="module")
def guarded(stock_tp1: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with gateway(stock_tp1.ranks[0].port, tmp_path_factory.mktemp("guarded"), context_length=4096) as fleet:
        yield fleet


def ask(fleet: Fleet, guard: str, **body: Any) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(fleet.url.removeprefix("http://"), timeout=120)
    headers = {"x-api-key": KEY, "Content-Type": "application/json", "x-dsv41-loop-guard": guard}
    connection.request("POST", "/v1/chat/completions", json.dumps(FOR_EVER | body), headers)
    response = connection.getresponse()
    raw = response.read()
    connection.close()
    return response, raw


def metrics(fleet: Fleet) -> str:
    connection = http.client.HTTPConnection(fleet.url.removeprefix("http://"), timeout=60)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {FLEET_KEY}"})
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def one_word(stock_tp1: Engine) -> dict[str, Any]:
    """A bias that leaves the model one long word to say."""
    (token, *_) = stock_tp1.post("/tokenize", {"prompt": " the", "add_special_tokens": False})["tokens"]
    return {"logit_bias": {str(token): 100.0}}


def test_a_loop_of_the_real_engine_is_ended_for_who_asks(stock_tp1: Engine, guarded: Fleet) -> None:
    response, raw = ask(guarded, "stop", stream=True, **one_word(stock_tp1))
    assert response.status == 200 and response.headers["x-dsv41-loop-guard"] == "stop"
    *_, comment, last = raw.rstrip(b"\n").split(b"\n\n")
    assert comment.startswith(b": x-dsv41-loop character=")
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "repetition"
    deadline = time.monotonic() + ALONE_S
    while "\ndsv41_gateway_running_requests 0\n" not in metrics(guarded) or n_running(stock_tp1):
        assert time.monotonic() < deadline, f"SGLang still writes {ALONE_S:g} s after the stream was ended"
        time.sleep(0.05)


def n_running(engine: Engine) -> int:
    with engine._open("/v1/loads", None) as response:
        return sum(load["num_running_reqs"] for load in json.load(response)["loads"])


def test_the_engines_own_figures_come_with_the_gateways(guarded: Fleet) -> None:
    text = metrics(guarded)
    assert "\n# TYPE sglang:cache_hit_rate gauge\nsglang:cache_hit_rate{" in text
    assert "\nsglang:spec_accept_length{" in text and "sglang:num_running_reqs" not in text
