"""The rules of /v1/messages, /v1/responses and /tokenize: each route's way of asking, in the form the engine reads."""

from __future__ import annotations

import base64
import copy
import zlib
from typing import Any

import pytest
from dsv41_supervisor.gateway import policy, policy_messages, policy_responses, thinking
from dsv41_supervisor.gateway.policy import BadRequest, CapSource, Limits
from dsv41_supervisor.gateway.routes import ROUTES

LIMITS = Limits("deepseek-v4.1-flash", context_length=262144, max_tokens_cap=32768)
OFF = Limits("deepseek-v4.1-flash", context_length=262144, max_tokens_cap=0)
HI = [{"role": "user", "content": "hi"}]
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def messages(limits: Limits = LIMITS, **body: Any) -> tuple[dict[str, Any], policy.Effective]:
    return policy_messages.create({"messages": HI, "max_tokens": 64} | body, limits)


def responses(limits: Limits = LIMITS, **body: Any) -> tuple[dict[str, Any], policy.Effective]:
    return policy_responses.create({"input": "hi"} | body, limits)


# --- /v1/messages


@pytest.mark.parametrize(
    ("asked", "on", "effort", "sent"),
    [
        ({}, False, None, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, True, None, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 10}}, True, None, None),
        ({"thinking": {"type": "adaptive"}}, True, None, None),
        ({"thinking": {"type": "disabled"}}, False, None, None),
        ({"output_config": {"effort": "low"}}, True, 50, "low"),
        ({"output_config": {"effort": "xhigh"}}, True, 75, "high"),  # SGLang alone would make `max` of it
        ({"output_config": {"effort": "max"}, "thinking": {"type": "adaptive"}}, True, 100, "max"),
        ({"output_config": {"effort": "max"}, "thinking": {"type": "disabled"}}, False, None, None),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True, None, None),
        ({"reasoning_effort": "none"}, False, None, None),
        # The engine's route takes tiers only: the nearest one holds, and the header says which.
        ({"reasoning_effort": 1}, True, 50, "low"),
        ({"reasoning_effort": 63}, True, 75, "high"),
        ({"reasoning_effort": 88}, True, 100, "max"),
    ],
)
def test_messages_think_as_asked_in_the_form_that_sglang_takes(asked: Any, on: bool, effort: Any, sent: Any) -> None:
    out, held = messages(**asked)
    assert out["thinking"] == {"type": "adaptive" if on else "disabled"}
    assert out.get("output_config", {}).get("effort") == sent
    assert (held.thinking, held.effort) == (on, effort)
    assert not {"chat_template_kwargs", "reasoning", "reasoning_effort", "enable_thinking"} & out.keys()


@pytest.mark.parametrize("budget", range(1, 101))
def test_a_tier_stands_for_the_nearest_budget_that_has_one(budget: int) -> None:
    tier = thinking.Thinking(True, budget).tier()
    assert tier is not None
    nearest = min((50, 75, 100), key=lambda known: abs(known - budget))
    assert thinking.TIER_BUDGETS[tier] == nearest


def test_a_messages_limit_is_clamped_and_filled() -> None:
    out, held = messages(max_tokens=64000)
    assert out["max_tokens"] == held.max_tokens == 32768 and held.cap_source is CapSource.CLAMPED
    out, held = messages(max_tokens=None)
    assert out["max_tokens"] == 32768 and held.cap_source is CapSource.FILLED
    with pytest.raises(BadRequest, match="max_tokens is missing"):
        messages(OFF, max_tokens=None)


def test_what_messages_cannot_have_is_told() -> None:
    _, held = messages(thinking={"type": "enabled", "budget_tokens": 2000, "display": "omitted"})
    assert held.headers()["x-dsv41-ignored"] == "thinking.budget_tokens, thinking.display"
    mine = {"name": "look", "input_schema": {"type": "object"}}
    out, held = messages(tools=[{"type": "web_search_20250305", "name": "web_search"}, mine])
    assert out["tools"] == [mine] and held.ignored == ("tools.web_search_20250305",)
    assert "x-dsv41-ignored" not in messages(tools=[mine | {"type": "custom"}])[1].headers()


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools", "unsupported_tool"),
        ({"tools": ["x"]}, "tools[0]", "invalid_value"),
        ({"tools": {}}, "tools", "invalid_value"),
        ({"mcp_servers": [{"url": "https://x"}]}, "mcp_servers", "unsupported_field"),
        ({"container": "c"}, "container", "unsupported_field"),
        ({"bootstrap_host": "evil"}, "bootstrap_host", "unsupported_field"),
        ({"messages": []}, "messages", "missing_field"),
        ({"messages": ["x"]}, "messages[0]", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type", "invalid_value"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort", "invalid_value"),
        ({"system": [{"type": "document"}]}, "system[0]", "unsupported_content"),
        ({"stop_sequences": ["x" * 257]}, "stop_sequences", "invalid_value"),
    ],
)
def test_messages_that_cannot_be_served_are_refused_by_field(body: Any, param: str, code: str) -> None:
    with pytest.raises(BadRequest) as refused:
        messages(**body)
    assert (refused.value.param, refused.value.code) == (param, code)


@pytest.mark.parametrize(
    "source",
    [
        {"type": "url", "url": "http://169.254.169.254/"},
        {"type": "url", "url": "file:///etc/passwd"},
        {"type": "file", "file_id": "f"},
        {"url": "/etc/passwd"},
        {"type": "base64", "data": "", "url": "/etc/passwd"},
        "/etc/passwd",
        None,
    ],
)
def test_no_image_of_a_message_makes_the_engine_fetch(source: Any) -> None:
    image = {"type": "image", "source": source}
    for content in ([image], [{"type": "tool_result", "tool_use_id": "t", "content": [image]}]):
        with pytest.raises(BadRequest) as refused:
            messages(messages=[{"role": "user", "content": content}])
        assert refused.value.code == "unsupported_url"
    assert messages(messages=[{"role": "user", "content": [PNG]}])[0]["messages"][0]["content"] == [PNG]


def test_counting_tokens_reads_the_prompt_in_the_same_way_and_generates_nothing() -> None:
    asked = {"messages": HI, "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}
    counted, held = policy_messages.count(asked, LIMITS)
    sent, _ = policy_messages.create(asked | {"max_tokens": 5}, LIMITS)
    assert counted == {name: value for name, value in sent.items() if name != "max_tokens"}
    assert held.headers() == {"x-dsv41-thinking": "on", "x-dsv41-effort": "50"}


# --- /v1/responses


@pytest.mark.parametrize(
    ("asked", "on", "effort"),
    [
        ({}, False, None),
        ({"reasoning": {"effort": "high"}}, True, 75),
        ({"reasoning": {"effort": "xhigh", "summary": "auto"}}, True, 75),
        ({"reasoning": {"effort": "none"}}, False, None),
        ({"reasoning": {"effort": None, "summary": "auto"}}, False, None),
        ({"reasoning": {"effort": "max"}, "thinking": {"type": "disabled"}}, False, None),
        ({"reasoning_effort": 30}, True, 30),
        ({"chat_template_kwargs": {"thinking": True, "reasoning_effort": 7}}, True, 7),
    ],
)
def test_responses_think_as_asked(asked: Any, on: bool, effort: int | None) -> None:
    out, held = responses(**asked)
    expected = {"thinking": on, "enable_thinking": on} | ({} if effort is None else {"reasoning_effort": effort})
    assert out["chat_template_kwargs"] == expected and (held.thinking, held.effort) == (on, effort)
    summary = asked.get("reasoning", {}).get("summary")
    # Not left out: SGLang would read "medium" there and overrule the fleet's default.
    assert out.get("reasoning") == (None if summary is None else {"effort": None, "summary": summary})


def test_a_response_gets_exactly_the_tokens_it_is_told_of() -> None:
    """SGLang takes two off; 1 was refused and 2 gave nothing."""
    out, held = responses(max_output_tokens=1)
    assert out["max_output_tokens"] == 3 and held.max_tokens == 1
    out, held = responses(max_output_tokens=99999)
    assert out["max_output_tokens"] == 32770 and held.headers()["x-dsv41-max-tokens"] == "32768"
    out, held = responses()
    assert out["max_output_tokens"] == 32770 and held.cap_source is CapSource.FILLED
    assert policy.with_max_tokens(out, 100)["max_output_tokens"] == 102
    assert "max_output_tokens" not in responses(OFF)[0]


def test_nothing_of_a_response_is_kept_in_the_engine() -> None:
    assert responses()[0]["store"] is False and responses(store=True)[0]["store"] is False


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"request_id": "resp_of_somebody_else"}, "request_id"),
        ({"session_id": "s"}, "session_id"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"max_output_tokens": "9"}, "max_output_tokens"),
        ({"stream": "true"}, "stream"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://10.0.0.1/"}]}]},
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"type": "function_call_output", "output": [{"image_url": {"url": "/etc/passwd"}}]}]},
            "input[0].output[0].image_url",
        ),
    ],
)
def test_a_response_that_cannot_be_served_is_refused_by_field(body: Any, param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        responses(**body)
    assert refused.value.param == param


def test_tools_that_run_at_the_provider_are_left_out_and_named() -> None:
    mine = {"type": "function", "name": "look", "parameters": {}}
    out, held = responses(tools=[{"type": "web_search"}, mine, {"type": "mcp", "server_url": "http://10.0.0.1"}])
    assert out["tools"] == [mine] and held.headers()["x-dsv41-ignored"] == "tools.web_search, tools.mcp"
    # A header cannot be written by the body.
    _, held = responses(tools=[{"type": "a\r\nSet-Cookie: x=1"}, mine])
    assert held.headers()["x-dsv41-ignored"] == "tools.aSet-Cookiex1"


def test_thoughts_that_come_back_packed_are_no_bomb() -> None:
    def packed(text: bytes) -> dict[str, str]:
        blob = "sglang-reasoning-v1." + base64.urlsafe_b64encode(zlib.compress(text)).decode()
        return {"type": "reasoning", "encrypted_content": blob}

    small, third, large = (packed(bytes(size)) for size in (1000, 3 << 20, 64 << 20))
    broken = packed(bytes(64 << 20))
    broken["encrypted_content"] = broken["encrypted_content"][:-40]  # SGLang would see that at its end only
    for bombs, where in (([small, large], 1), ([broken], 0), ([third, third, third], 2)):
        with pytest.raises(BadRequest, match="packed") as refused:
            responses(input=[*bombs, {"role": "user", "content": "x"}])
        assert refused.value.param == f"input[{where}].encrypted_content"
    others = [{"type": "reasoning", "encrypted_content": blob} for blob in ("gAAAA", "sglang-reasoning-v1.ü", None, 7)]
    assert responses(input=[small, third, *others])[0]["input"][0] == small


def test_a_response_that_is_to_be_shortened_by_the_server_is_told_that_it_is_not() -> None:
    assert responses(truncation="auto")[1].ignored == ("truncation",)
    assert not responses(truncation="disabled")[1].ignored


# --- /tokenize


def test_tokenize_takes_text_or_messages_as_a_chat_would_render_them() -> None:
    out, held = policy.tokenize({"prompt": "hi", "model": "any"}, LIMITS)
    assert out == {"prompt": "hi", "model": "deepseek-v4.1-flash"} and held.headers() == {}
    out, held = policy.tokenize({"messages": [{"role": "developer", "content": "x"}], "reasoning_effort": 30}, LIMITS)
    assert out["messages"][0]["role"] == "system"
    assert out["chat_template_kwargs"] == {"thinking": True, "enable_thinking": True, "reasoning_effort": 30}
    assert held.headers() == {"x-dsv41-thinking": "on", "x-dsv41-effort": "30"}
    for body in ({}, {"prompt": "x", "messages": HI}):
        with pytest.raises(BadRequest, match="either prompt or messages"):
            policy.tokenize(body, LIMITS)


# --- all of them


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_rules_change_nothing_they_are_given_and_twice_is_the_same_as_once(route: Any) -> None:
    body = {
        "/v1/responses": {"input": "hi", "reasoning": {"effort": "high", "summary": "auto"}},
        "/v1/completions": {"prompt": "hi"},
        "/tokenize": {"prompt": "hi"},
        "/v1/tokenize": {"messages": HI, "thinking": {"type": "enabled"}},
    }.get(route.path, {"messages": HI, "reasoning_effort": 30})
    given = copy.deepcopy(body)
    once, held = route.rules(body, LIMITS)
    assert body == given
    if route.path == "/v1/responses":
        once = once | {"max_output_tokens": once["max_output_tokens"] - policy.HEADROOM_TOKENS}
    twice, again = route.rules(once, LIMITS)
    if route.path == "/v1/responses":
        twice = twice | {"max_output_tokens": twice["max_output_tokens"] - policy.HEADROOM_TOKENS}
    assert twice == once and (again.thinking, again.max_tokens) == (held.thinking, held.max_tokens)


def test_the_engine_knows_each_request_by_a_name_that_no_client_chose() -> None:
    def named(path: str, **body: Any) -> Any:
        return next(route for route in ROUTES if route.path == path).name(body, "abc")

    assert named("/v1/chat/completions") == ({"rid": "abc"}, {}, ("abc",))
    assert named("/v1/responses") == ({"request_id": "resp_abc"}, {}, ("resp_abc",))
    assert named("/v1/messages") == ({}, {"x-override-rid": "abc"}, ("abc",))
    assert named("/tokenize") == ({}, {}, ())
    assert named("/v1/completions", prompt=[1, 2, 3])[2] == ("abc",)
    assert named("/v1/completions", prompt=["x", "y"])[2] == ("abc", "abc_0", "abc_1")
