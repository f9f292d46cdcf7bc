"""curl through the real gateway to the real SGLang: each way to an answer, whole and streamed, as a person asks."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.engine.engines import Engine
from tests.engine.gateway import KEY, Fleet

HI = [{"role": "user", "content": "What is a spark?"}]
BEARER, X_API_KEY = f"Authorization: Bearer {KEY}", f"x-api-key: {KEY}"
WAYS: dict[str, tuple[str, dict[str, Any], str]] = {
    "/v1/chat/completions": (BEARER, {"messages": HI, "max_tokens": 12}, "data: [DONE]"),
    "/v1/completions": (BEARER, {"prompt": "A spark is", "max_tokens": 12}, "data: [DONE]"),
    "/v1/responses": (BEARER, {"input": "What is a spark?", "max_output_tokens": 12}, "event: response.incomplete"),
    "/v1/messages": (X_API_KEY, {"messages": HI, "max_tokens": 12}, "event: message_stop"),
}
"""Path: with which key, what is asked, and the line with which its streams end."""


def curl(fleet: Fleet, path: str, *arguments: str) -> str:
    argv = ["curl", "-sS", "--fail-with-body", "-N", "-m", "120", fleet.url + path, *arguments]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def texts(said: Any) -> str:
    """All that is text for a reader, in an answer or an event of any protocol."""
    if isinstance(said, list):
        return "".join(map(texts, said))
    if not isinstance(said, dict):
        return ""
    found = [said[name] for name in ("text", "content") if isinstance(said.get(name), str)]
    if isinstance(said.get("delta"), str):
        found.append(said["delta"])
    inside = [said[name] for name in ("choices", "message", "delta", "content", "output") if name in said]
    return "".join(found) + texts(inside)


@pytest.mark.parametrize("path", WAYS)
def test_curl_is_answered_whole_and_streamed(fleet: Fleet, stock_tp1: Engine, path: str) -> None:
    key, asked, last = WAYS[path]
    asked = asked | {"model": "any", "temperature": 0}
    whole = texts(json.loads(curl(fleet, path, "-H", key, "--json", json.dumps(asked))))
    lines = curl(fleet, path, "-H", key, "--json", json.dumps(asked | {"stream": True})).splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    # Responses repeats the text in its closing events.
    pieces = [event for event in events if event.get("type", "response.output_text.delta") in (
        "response.output_text.delta", "content_block_delta")]  # fmt: skip
    assert texts(pieces) == whole != "" and last in lines
    if path != "/v1/completions":
        assert whole == stock_tp1.chat()["choices"][0]["message"]["content"]


def test_curl_sees_a_call_begin_and_a_thought(fleet: Fleet) -> None:
    """Streamed as messages, because a whole answer of this model's ends before its call does."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"name": "get_weather", "description": "Weather of a city", "input_schema": city}
    asked = {"messages": HI, "temperature": 0, "max_tokens": 40, "stream": True, "model": "any"}
    called = asked | {"tools": [tool], "tool_choice": {"type": "any"}}
    said = curl(fleet, "/v1/messages", "-H", X_API_KEY, "--json", json.dumps(called))
    assert '"type":"tool_use"' in said and '"name":"get_weather"' in said
    thought = asked | {"thinking": {"type": "adaptive"}}
    said = curl(fleet, "/v1/messages", "-i", "-H", X_API_KEY, "--json", json.dumps(thought))
    assert "x-dsv41-thinking: on" in said.lower().splitlines() and '"type":"thinking_delta"' in said


def test_curl_counts_tokens_and_lists_the_model(fleet: Fleet) -> None:
    counted = json.loads(curl(fleet, "/tokenize", "-H", BEARER, "--json", json.dumps({"prompt": "a spark"})))
    assert counted["count"] == len(counted["tokens"]) > 0
    asked = json.dumps({"messages": HI, "model": "any"})
    told = curl(fleet, "/v1/messages/count_tokens", "-H", X_API_KEY, "--json", asked)
    assert json.loads(told) == {"input_tokens": 16}
    (model,) = json.loads(curl(fleet, "/v1/models", "-H", BEARER))["data"]
    assert (model["id"], model["max_model_len"]) == ("demo", 4096)
