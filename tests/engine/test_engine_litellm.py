"""LiteLLM through the real gateway to the real SGLang, as `openai/…` and as `anthropic/…`."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engines import Engine
from tests.engine.gateway import KEY, NARROW_KEYS, Fleet
from tests.harness.clients import environment

PROVIDERS = ("openai", "anthropic")
ANSWER_S = 240.0
"""Bound of all that one test asks. The import of LiteLLM takes 10 s on a busy core, all steps together 10 more."""

provider = pytest.mark.parametrize("provider", PROVIDERS)


@dataclass
class LiteLLM:
    """One process for all tests: the import costs more than the steps."""

    process: subprocess.Popen[str]

    def ask(self, step: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(step + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"LiteLLM's program ended with {self.process.wait(10)}: see stderr above"
        return json.loads(line)


@pytest.fixture(scope="module")
def litellm(
    clients_python: Path, repo_root: Path, fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiteLLM]:
    process = subprocess.Popen(
        [str(clients_python), str(repo_root / "tests/clients/litellm_client.py"), fleet.url, KEY, *NARROW_KEYS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(tmp_path_factory.mktemp("litellm")),
    )  # fmt: skip
    try:
        yield LiteLLM(process)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def said(stock_tp1: Engine) -> str:
    return str(stock_tp1.chat()["choices"][0]["message"]["content"])


def test_litellm_chats_and_streams(litellm: LiteLLM, said: str) -> None:
    expected = {"content": said, "finish": "length", "calls": [], "tokens": 12}
    assert litellm.ask("chat") == dict.fromkeys(PROVIDERS, [expected, expected])


def test_litellm_turns_thinking_on_by_effort(litellm: LiteLLM) -> None:
    for read in litellm.ask("thinking").values():
        assert read["reasoning_content"] and not read["content"]


def test_litellm_calls_tools_and_sends_their_results_back(litellm: LiteLLM) -> None:
    for answers in litellm.ask("tools").values():
        assert [answer["calls"] for answer in answers] == [["get_weather"]] * 2
    for calls in litellm.ask("call"):
        assert calls in ([["get_weather", {"city": "Paris"}]], [["get_weather", {"city": "Rome"}]])
    for answer in litellm.ask("history").values():
        assert answer["tokens"] == 12 and answer["content"]


def test_litellm_asks_for_structured_output(litellm: LiteLLM) -> None:
    assert litellm.ask("structured")["content"].startswith("{")


def test_litellm_completes_text_and_speaks_responses(litellm: LiteLLM, said: str) -> None:
    assert litellm.ask("completions").split()
    response = litellm.ask("responses")
    assert response["text"].startswith(said) and (response["status"], response["tokens"]) == ("incomplete", 16)


def test_litellm_raises_what_its_users_catch(litellm: LiteLLM) -> None:
    """Its routers retry, fall back and shorten by these classes."""
    too_long = ["ContextWindowExceededError", 400]
    told = litellm.ask("errors")
    for provider in PROVIDERS:
        assert {name: [kind, status] for name, (kind, status, _) in told[provider].items()} == {
            "wrong key": ["AuthenticationError", 401],
            "bad value": ["BadRequestError", 400],
            "too long": too_long,
            "too long, streamed": too_long,
        }
        assert "(4096 tokens)" in told[provider]["too long"][2]


def test_litellm_sees_the_limit_of_a_key(litellm: LiteLLM) -> None:
    for kind, status, message in litellm.ask("limited").values():
        assert (kind, status) == ("RateLimitError", 429) and "requests=1" in message


@pytest.fixture
def recovering(fleet: Fleet) -> Iterator[None]:
    fleet.lose_rank()
    yield
    fleet.serve_again()


def test_litellm_sees_a_fleet_that_recovers_as_unavailable(litellm: LiteLLM, recovering: None) -> None:
    told = litellm.ask("unready")
    assert told["openai"][:2] == ["ServiceUnavailableError", 503]
    # What Anthropic calls overloaded is an InternalServerError to LiteLLM, whatever the status says; it is tried again.
    assert told["anthropic"][:2] == ["InternalServerError", 500]
    for _, _, message in told.values():
        assert "rank 2 on spark3 was lost" in message and "Try again in" in message


@provider
def test_a_lost_rank_is_an_exception_of_litellms(litellm: LiteLLM, fleet: Fleet, provider: str) -> None:
    assert litellm.ask(f"cut {provider}") == "running"
    with contextlib.ExitStack() as after:
        after.callback(fleet.serve_again)
        fleet.lose_rank()
        kind, _, message = litellm.answer()
    assert kind == "MidStreamFallbackError" and "The engine was lost while it answered." in message
