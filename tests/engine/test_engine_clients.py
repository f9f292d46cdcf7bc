"""Clients that others wrote, through the real gateway, to the real SGLang: what supervisor/GATEWAY.md promises them.

The SDKs are those that SGLang itself depends on, in the engine's environment: `openai` and `anthropic`.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import CONTEXT
from tests.engine.engines import Engine
from tests.engine.gateway import KEY, Fleet, gateway

INSIDE = Path(__file__).parent / "inside"
CLIENT_S = 240
"""Bound of one client's steps. They take 20 s together on two idle cores."""

CHAT = [
    "models", "chat", "stream", "thinking", "tools", "tools_stream", "structured", "completions", "responses",
    "responses_stream", "responses_thinking", "responses_tools", "errors",
]  # fmt: skip
MESSAGES = ["create", "stream", "thinking", "tools", "count", "history", "errors"]
CALL = ["get_weather", {"city": "Paris"}], ["get_weather", {"city": "Rome"}]


@pytest.fixture(scope="module")
def client(engine_python: Path, fleet: Fleet) -> Callable[..., subprocess.Popen[str]]:
    def run(name: str, *steps: str, url: str = fleet.url) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(engine_python), str(INSIDE / f"{name}_client.py"), url, KEY, *steps],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return run


def said(client: Callable[..., Any], name: str, steps: list[str], **where: str) -> dict[str, Any]:
    process = client(name, *steps, **where)
    try:
        out, err = process.communicate(timeout=CLIENT_S)
    finally:
        process.kill()
    assert process.returncode == 0, err[-3000:]
    return dict(zip(steps, map(json.loads, out.splitlines()), strict=True))


@pytest.fixture(scope="module")
def openai(client: Callable[..., Any]) -> dict[str, Any]:
    return said(client, "openai", CHAT)


@pytest.fixture(scope="module")
def anthropic(client: Callable[..., Any]) -> dict[str, Any]:
    return said(client, "anthropic", MESSAGES)


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_the_page_says_which_sdk_was_run(engine_python: Path, repo_root: Path, name: str) -> None:
    argv = [str(engine_python), "-c", f"import {name}; print({name}.__version__)"]
    version = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    page = (repo_root / "supervisor" / "GATEWAY.md").read_text()
    assert f"| `{name}` {version} (Python) |" in page, "run these tests, then change the version in the client matrix"


def test_openai_sdk_chats_and_is_told_what_held(openai: dict[str, Any], stock_tp1: Engine) -> None:
    assert openai["models"] == ["demo"]
    chat = openai["chat"]
    assert chat["content"] == stock_tp1.chat()["choices"][0]["message"]["content"]
    assert chat["finish"] == "length" and chat["usage"]["completion_tokens"] == 12
    told = chat["headers"]
    assert told["x-dsv41-max-tokens"] == "12" and told["x-dsv41-finish"] == "length"
    # The engine's name of the request is the gateway's: one word to look for in both logs.
    assert chat["id"] == told["x-request-id"]


def test_openai_sdk_streams_and_gets_usage_when_it_asks(openai: dict[str, Any]) -> None:
    expected = {"content": openai["chat"]["content"], "finish": ["length"]}
    assert openai["stream"]["without"] == expected | {"without choices": 0, "completion_tokens": []}
    assert openai["stream"]["with usage"] == expected | {"without choices": 1, "completion_tokens": [12]}


def test_openai_sdk_turns_thinking_on_by_effort(openai: dict[str, Any]) -> None:
    assert openai["thinking"]["reasoning"] and not openai["thinking"]["content"]


def test_openai_sdk_calls_tools_and_reads_structured_output(openai: dict[str, Any]) -> None:
    for step in ("tools", "tools_stream"):
        assert openai[step]["finish"] == "tool_calls" and openai[step]["calls"][0] in CALL
    assert openai["structured"]["answer"] in ("yes", "no")


def test_openai_sdk_completes_text(openai: dict[str, Any]) -> None:
    assert openai["completions"]["whole"] == openai["completions"]["streamed"] != ""


def test_openai_sdk_speaks_responses(openai: dict[str, Any]) -> None:
    expected = {"status": "incomplete", "why": "max_output_tokens", "output_tokens": 12}
    assert openai["responses"] == expected | {"text": openai["chat"]["content"]}
    streamed = openai["responses_stream"]
    assert streamed["last"] == "response.incomplete" and "response.output_text.delta" in streamed["names"]
    assert openai["responses_thinking"] == ["reasoning"]
    # Without logit_bias this model fills its call with blanks; that it calls is all it can show here.
    assert openai["responses_tools"] == ["get_weather"]


def test_openai_sdk_raises_what_its_users_catch(openai: dict[str, Any]) -> None:
    too_long = ["BadRequestError", 400, "context_length_exceeded"]
    assert openai["errors"] == {
        "wrong key": ["AuthenticationError", 401, "invalid_api_key"],
        "no such route": ["NotFoundError", 404, "unknown_url"],
        "bad value": ["BadRequestError", 400, "invalid_value"],
        "too long": too_long,
        "too long, streamed": too_long,
    }


def test_anthropic_sdk_creates_and_streams_messages(anthropic: dict[str, Any]) -> None:
    whole, streamed = anthropic["create"], anthropic["stream"]
    assert whole["stop"] == "max_tokens" and whole["usage"][1] == 12
    assert whole["headers"]["x-dsv41-finish"] == "length"
    assert streamed == {"text": whole["text"], "final": whole["text"], "stop": "max_tokens", "tokens": 12}
    assert anthropic["count"] == 16 and anthropic["history"] == 5


def test_anthropic_sdk_turns_thinking_on_and_off(anthropic: dict[str, Any]) -> None:
    assert anthropic["thinking"] == {
        "enabled": ["thinking", "thinking.budget_tokens"], "adaptive": ["thinking", None], "disabled": ["text", None],
    }  # fmt: skip


def test_anthropic_sdk_calls_tools(anthropic: dict[str, Any]) -> None:
    assert anthropic["tools"] == ["get_weather"]


def test_anthropic_sdk_raises_what_its_users_catch(anthropic: dict[str, Any]) -> None:
    too_long = ["BadRequestError", 400, "invalid_request_error", "prompt is too long:"]
    assert anthropic["errors"] == {
        "wrong key": ["AuthenticationError", 401, "authentication_error", "This API key is not"],
        "bad value": ["BadRequestError", 400, "invalid_request_error", "messages is missing"],
        "too long": too_long,
        "too long, streamed": too_long,
    }


def test_signs_of_life_between_any_two_tokens_change_nothing_for_the_sdks(
    client: Callable[..., Any], stock_tp1: Engine, tmp_path: Path, openai: dict[str, Any], anthropic: dict[str, Any]
) -> None:
    """Comments, and pings before the first event of a message too: a long prefill in small."""
    with gateway(stock_tp1.ranks[0].port, tmp_path, context_length=CONTEXT, keep_alive_s=0.001) as restless:
        steps = ["stream", "responses_stream"]
        assert said(client, "openai", steps, url=restless.url) == {step: openai[step] for step in steps}
        assert said(client, "anthropic", ["stream"], url=restless.url) == {"stream": anthropic["stream"]}
        ask = urllib.request.Request(restless.url + "/metrics", headers={"x-api-key": KEY})
        with urllib.request.urlopen(ask) as got:
            text = got.read().decode()
    sent = int(text.partition("\ndsv41_gateway_keep_alives_total ")[2].partition("\n")[0])
    assert sent > 12, "fewer signs of life than tokens"


@pytest.mark.parametrize(("name", "kind", "streams"), [
    ("openai", "APIError", ["chat", "responses"]), ("anthropic", "APIStatusError", ["messages"]),
])  # fmt: skip
def test_a_lost_rank_is_an_exception_in_the_clients_program(
    client: Callable[..., subprocess.Popen[str]], fleet: Fleet, name: str, kind: str, streams: list[str]
) -> None:
    process = client(name, "cut")
    assert process.stdin is not None and process.stdout is not None
    try:
        for _ in streams:
            process.stdin.write("\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == "running"
            fleet.lose_rank()
            assert json.loads(process.stdout.readline()) == "ended"
            fleet.serve_again()
        told = json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()
    assert list(told) == streams
    for seen, code, message in told.values():
        assert (seen, code) == (kind, "engine_lost")
        assert message.startswith("The engine was lost while it answered. ") and "rank 2 on spark3" in message
