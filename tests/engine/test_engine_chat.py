"""V4.1's chat encoding and parsers, in the real server with the demo's tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.engines import Engine

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}
CALL = (
    'Let me look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="get_weather">\n'
    '<｜DSML｜ parameter name="city" string="true">Paris</｜DSML｜ parameter>\n'
    '<｜DSML｜ parameter name="days" string="false">3</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)


def prompt_tokens(engine: Engine, **body: Any) -> int:
    return int(engine.chat(**body)["usage"]["prompt_tokens"])


def test_thinking_is_off_unless_asked_for_and_has_its_own_prompt(stock_tp1: Engine) -> None:
    plain = prompt_tokens(stock_tp1)
    assert prompt_tokens(stock_tp1, chat_template_kwargs={"thinking": False}) == plain
    assert prompt_tokens(stock_tp1, chat_template_kwargs={"thinking": True}) > plain + 40


def test_sglang_does_not_read_enable_thinking(stock_tp1: Engine) -> None:
    """Why the gateway has the alias; when this fails after a bump, the alias may go."""
    assert prompt_tokens(stock_tp1, chat_template_kwargs={"enable_thinking": True}) == prompt_tokens(stock_tp1)


def test_a_higher_effort_is_another_prompt(stock_tp1: Engine) -> None:
    assert prompt_tokens(stock_tp1, reasoning_effort="max") > prompt_tokens(stock_tp1)
    assert prompt_tokens(stock_tp1, reasoning_effort="none") == prompt_tokens(stock_tp1)


def test_what_is_thought_and_what_is_said_are_apart(stock_tp1: Engine) -> None:
    said = stock_tp1.chat()["choices"][0]["message"]
    assert said["content"] and not said["reasoning_content"]
    thought = stock_tp1.chat(chat_template_kwargs={"thinking": True})["choices"][0]["message"]
    assert thought["reasoning_content"] and not thought["content"]


def test_the_demo_speaks_words(stock_tp1: Engine) -> None:
    """Random weights, but only whole words have an output row: the first impression can be read."""
    words = stock_tp1.chat(max_tokens=24)["choices"][0]["message"]["content"].split()
    assert len(words) == 24 and all(word.isalpha() and word.isascii() for word in words)


def test_a_stream_is_the_whole_answer_in_pieces(stock_tp1: Engine) -> None:
    whole = stock_tp1.chat()["choices"][0]
    chunks = list(stock_tp1.stream())
    deltas = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in deltas) == whole["message"]["content"]
    assert [choice["finish_reason"] for choice in deltas if choice["finish_reason"]] == ["length"]
    assert len(deltas) > 4


def test_tools_are_part_of_the_prompt(stock_tp1: Engine) -> None:
    assert prompt_tokens(stock_tp1, tools=[TOOL]) > prompt_tokens(stock_tp1) + 100


def test_a_tool_call_is_parsed(stock_tp1: Engine) -> None:
    parsed = stock_tp1.post("/parse_function_call", {"text": CALL, "tools": [TOOL], "tool_call_parser": "deepseekv41"})
    (call,) = parsed["calls"]
    assert call["name"] == "get_weather"
    assert call["parameters"].replace(" ", "") == '{"city":"Paris","days":3}'
    assert "DSML" not in parsed["normal_text"]


@pytest.mark.parametrize("thinking", [False, True])
def test_chat_with_rows_from_disk_says_the_same(stock_tp1: Engine, nvme_tp1: Engine, thinking: bool) -> None:
    body = {"chat_template_kwargs": {"thinking": thinking}, "logprobs": True}
    for engine in (stock_tp1, nvme_tp1):
        # What was asked for before decides how much of the prompt is computed, in which pieces, and so the last bits.
        engine.forget_prefixes()
    expected, got = (engine.chat("Tell me about sparks.", **body)["choices"][0] for engine in (stock_tp1, nvme_tp1))
    assert got["message"] == expected["message"]
    assert got["logprobs"] == expected["logprobs"]
