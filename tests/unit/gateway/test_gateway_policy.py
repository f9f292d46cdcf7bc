"""policy.py: every spelling of thinking, effort and token limit, and what is refused. No I/O."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from dsv41_supervisor.gateway import policy
from dsv41_supervisor.gateway.policy import BadRequest, CapSource, Limits
from hypothesis import given
from hypothesis import strategies as st

LIMITS = Limits("deepseek-v4.1-flash", context_length=262144, max_tokens_cap=32768)
OFF = Limits("deepseek-v4.1-flash", context_length=262144, max_tokens_cap=0)
HI = [{"role": "user", "content": "hi"}]


def chat(limits: Limits = LIMITS, **body: Any) -> tuple[dict[str, Any], policy.Effective]:
    return policy.chat({"messages": HI} | body, limits)


@pytest.mark.parametrize(
    ("body", "thinking", "effort"),
    [
        ({}, False, None),
        # one spelling each
        ({"chat_template_kwargs": {"thinking": True}}, True, None),
        ({"chat_template_kwargs": {"thinking": False}}, False, None),
        ({"chat_template_kwargs": {"thinking": "false"}}, False, None),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True, None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False, None),
        ({"enable_thinking": True}, True, None),
        ({"thinking": True}, True, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, True, None),
        ({"thinking": {"type": "adaptive"}}, True, None),
        ({"thinking": {"type": "disabled"}}, False, None),
        ({"reasoning": {"enabled": True}}, True, None),
        ({"reasoning": {"enabled": False}}, False, None),
        ({"reasoning": {}}, False, None),
        ({"reasoning": {"effort": "high"}}, True, 75),
        ({"reasoning_effort": "none"}, False, None),
        ({"reasoning_effort": "minimal"}, True, 50),
        ({"reasoning_effort": "low"}, True, 50),
        ({"reasoning_effort": "medium"}, True, 75),
        ({"reasoning_effort": "high"}, True, 75),
        ({"reasoning_effort": "xhigh"}, True, 75),
        ({"reasoning_effort": "max"}, True, 100),
        ({"reasoning_effort": "High "}, True, 75),
        ({"reasoning_effort": 30}, True, 30),
        ({"reasoning_effort": 1}, True, 1),
        ({"reasoning_effort": 100}, True, 100),
        ({"reasoning_effort": 0.3}, True, 30),
        ({"reasoning_effort": 0.0}, True, 1),
        ({"reasoning_effort": 49.0}, True, 49),
        ({"reasoning_effort": 0.99}, True, 99),
        ({"reasoning_effort": "30"}, True, 30),
        ({"reasoning_effort": "0.3"}, True, 30),
        ({"chat_template_kwargs": {"reasoning_effort": 30}}, True, 30),
        # `thinking` wins
        ({"chat_template_kwargs": {"thinking": True, "enable_thinking": False}}, True, None),
        ({"chat_template_kwargs": {"thinking": False, "enable_thinking": True}}, False, None),
        ({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}}, False, None),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "max"}, False, None),
        ({"thinking": True, "reasoning_effort": "none"}, True, None),
        ({"enable_thinking": False, "reasoning": {"enabled": True}}, False, None),
        ({"reasoning": {"enabled": False, "effort": "high"}}, False, None),
        ({"reasoning": {"enabled": True, "effort": "low"}}, True, 50),
        # the engine's order of efforts
        ({"reasoning_effort": "low", "reasoning": {"effort": "max"}}, True, 100),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": 7}}, True, 7),
        # null is absent
        ({"thinking": None, "enable_thinking": None, "reasoning_effort": None}, False, None),
        ({"chat_template_kwargs": None}, False, None),
        ({"chat_template_kwargs": {"thinking": None, "enable_thinking": True}}, True, None),
    ],
)  # fmt: skip
def test_every_spelling_of_thinking_and_effort_is_read(body: Any, thinking: bool, effort: int | None) -> None:
    out, effective = chat(**body)
    assert (effective.thinking, effective.effort) == (thinking, effort)
    kwargs = out["chat_template_kwargs"]
    assert kwargs["thinking"] is kwargs["enable_thinking"] is thinking
    assert kwargs.get("reasoning_effort") == effort
    assert not {"thinking", "enable_thinking", "reasoning", "reasoning_effort"} & out.keys()
    assert effective.headers()["x-dsv41-thinking"] == ("on" if thinking else "off")


def test_a_budget_of_thinking_tokens_is_not_held_and_said_so() -> None:
    _, effective = chat(thinking={"type": "enabled", "budget_tokens": 2000})
    assert effective.headers()["x-dsv41-ignored"] == "thinking.budget_tokens"
    assert "x-dsv41-ignored" not in chat(thinking={"type": "enabled", "display": "summarized"})[1].headers()


def test_token_ids_that_sglang_refuses_to_stream_are_left_out_and_said_so() -> None:
    """llama-benchy always asks for them, and counts by the usage where there are none."""
    out, effective = chat(stream=True, return_token_ids=True, messages=[{"role": "user", "content": "hi"}])
    assert "return_token_ids" not in out and effective.headers()["x-dsv41-ignored"] == "return_token_ids"
    for served in ({"stream": False, "return_token_ids": True}, {"stream": True, "return_token_ids": False}):
        out, effective = chat(**served)
        assert out["return_token_ids"] is served["return_token_ids"] and effective.ignored == ()


def test_other_template_arguments_are_kept() -> None:
    out, _ = chat(chat_template_kwargs={"thinking": True, "spaces_between_special_tokens": False})
    assert out["chat_template_kwargs"]["spaces_between_special_tokens"] is False


@pytest.mark.parametrize(
    ("default", "body", "thinking", "effort"),
    [
        (75, {}, True, 75),
        (75, {"reasoning_effort": "low"}, True, 50),
        (75, {"reasoning_effort": "none"}, False, None),
        (75, {"thinking": False}, False, None),
        (75, {"thinking": True}, True, 75),
        ("none", {}, False, None),
        ("none", {"thinking": True}, True, None),
        ("none", {"reasoning_effort": "low"}, True, 50),
    ],
)
def test_a_default_effort_is_for_requests_that_name_none(
    default: int | str, body: dict[str, Any], thinking: bool, effort: int | None
) -> None:
    once, effective = chat(replace(LIMITS, default_thinking=True, default_effort=default), **body)
    assert (effective.thinking, effective.effort) == (thinking, effort)
    assert once["chat_template_kwargs"].get("reasoning_effort") == effort


def test_the_default_of_thinking_is_the_fleets() -> None:
    limits = Limits("m", 4096, default_thinking=True)
    assert chat(limits)[1].thinking is True
    assert chat(limits, enable_thinking=False)[1].thinking is False
    assert chat(limits, reasoning_effort="none")[1].thinking is False


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"thinking": "perhaps"}, "thinking"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"thinking": []}, "thinking"),
        ({"thinking": 2}, "thinking"),
        ({"enable_thinking": 0.5}, "enable_thinking"),
        ({"chat_template_kwargs": {"enable_thinking": "nein"}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"reasoning_effort": 101}, "reasoning_effort"),
        ({"reasoning_effort": -1}, "reasoning_effort"),
        ({"reasoning_effort": 1.5}, "reasoning_effort"),
        ({"reasoning_effort": True}, "reasoning_effort"),
        ({"reasoning_effort": {}}, "reasoning_effort"),
        ({"reasoning": {"effort": "1.0"}}, "reasoning.effort"),
        # a wrong value is refused even where another one wins
        ({"thinking": True, "enable_thinking": "nein"}, "enable_thinking"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": "100"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 10, "max_tokens": 0}, "max_tokens"),
        ({"max_tokens": float("inf")}, "max_tokens"),
        ({"min_tokens": 50, "max_tokens": 10}, "min_tokens"),
        ({"min_tokens": 40000}, "min_tokens"),
        ({"min_tokens": "5"}, "min_tokens"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"n": 0}, "n"),
        ({"model": 7}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content[0]"),
        ({"custom_logit_processor": "x"}, "custom_logit_processor"),
        ({"bootstrap_host": "10.0.0.1"}, "bootstrap_host"),
        ({"rid": "somebody-else"}, "rid"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop": ["x", "x" * 257]}, "stop"),
        ({"stop_token_ids": [1_000_000_000]}, "stop_token_ids"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids"),
        ({"stop_token_ids": 1}, "stop_token_ids"),
        ({"logit_bias": {"5": 1e39}}, "logit_bias"),
        ({"logit_bias": {"5": -101}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"repetition_penalty": 1e-46}, "repetition_penalty"),
        ({"repetition_penalty": True}, "repetition_penalty"),
        ({"temperature": 1e39}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
    ],
)  # fmt: skip
def test_what_is_ambiguous_or_not_for_users_is_refused_by_name(body: Any, param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        chat(**body)
    assert refused.value.param == param
    assert param.rpartition(".")[2] in refused.value.message


@pytest.mark.parametrize(
    ("limits", "body", "max_tokens", "source"),
    [
        (LIMITS, {}, 32768, CapSource.FILLED),
        (LIMITS, {"max_tokens": None}, 32768, CapSource.FILLED),
        (LIMITS, {"max_tokens": 16}, 16, CapSource.CLIENT),
        (LIMITS, {"max_completion_tokens": 16}, 16, CapSource.CLIENT),
        (LIMITS, {"max_tokens": 16.0}, 16, CapSource.CLIENT),
        (LIMITS, {"max_tokens": 99, "max_completion_tokens": 16}, 16, CapSource.CLIENT),
        (LIMITS, {"max_tokens": 16, "max_completion_tokens": 99999}, 32768, CapSource.CLAMPED),
        (LIMITS, {"max_tokens": 32768}, 32768, CapSource.CLIENT),
        (LIMITS, {"max_tokens": 32769}, 32768, CapSource.CLAMPED),
        (LIMITS, {"max_tokens": 10**30}, 32768, CapSource.CLAMPED),
        (LIMITS, {"min_tokens": 256, "max_tokens": 256}, 256, CapSource.CLIENT),
        # a context smaller than the cap
        (Limits("m", 4096), {}, 4095, CapSource.FILLED),
        (Limits("m", 4096), {"max_tokens": 8000}, 4095, CapSource.CLAMPED),
        # off
        (OFF, {}, None, CapSource.NONE),
        (OFF, {"max_tokens": 99999}, 99999, CapSource.CLIENT),
    ],
)  # fmt: skip
def test_the_token_limit_is_filled_and_clamped(
    limits: Limits, body: Any, max_tokens: int, source: str
) -> None:
    out, effective = chat(limits, **body)
    assert (effective.max_tokens, effective.cap_source) == (max_tokens, source)
    # Both names carry it: whichever the engine reads.
    assert (out.get("max_tokens"), out.get("max_completion_tokens")) == (max_tokens, max_tokens)
    told = effective.headers()
    assert told["x-dsv41-max-tokens"] == ("unlimited" if max_tokens is None else str(max_tokens))
    assert told.get("x-dsv41-max-tokens-source") == (source if source in ("filled", "clamped") else None)


def test_completions_get_openais_sixteen_tokens_and_the_same_cap() -> None:
    for asked, got in ((None, 16), (5, 5), (99999, 32768)):
        out, effective = policy.completions({"prompt": "1", "max_tokens": asked}, LIMITS)
        assert out["max_tokens"] == effective.max_tokens == got
        assert "max_completion_tokens" not in out and "chat_template_kwargs" not in out
        assert effective.thinking is None and "x-dsv41-thinking" not in effective.headers()
    assert policy.completions({"prompt": "1"}, OFF)[0]["max_tokens"] == 16
    assert policy.completions({"prompt": "1"}, Limits("m", 4096, max_tokens_cap=4))[0]["max_tokens"] == 4


@pytest.mark.parametrize("prompt", ["", [], None])
def test_completions_need_a_prompt(prompt: object) -> None:
    with pytest.raises(BadRequest, match="prompt is missing or empty"):
        policy.completions({"prompt": prompt}, LIMITS)


def test_sampling_within_what_can_be_computed_is_left_as_it_is() -> None:
    asked = {"logit_bias": {"5": -100, "6": 100}, "repetition_penalty": 1, "temperature": 0, "stop": ["x" * 256]}
    asked |= {"stop_token_ids": [0, 129_279]}
    out, _ = chat(**asked)
    assert {name: out[name] for name in asked} == asked


def test_what_sglang_would_leave_out_of_a_completion_is_told() -> None:
    with pytest.raises(BadRequest, match="suffix"):
        policy.completions({"prompt": "def f(", "suffix": "return 1"}, LIMITS)
    assert not policy.completions({"prompt": "1", "suffix": "", "best_of": 2, "n": 2}, LIMITS)[1].ignored
    assert policy.completions({"prompt": "1", "best_of": 5, "n": 2}, LIMITS)[1].ignored == ("best_of",)


def test_the_developer_role_becomes_the_system_role() -> None:
    messages = [
        {"role": "developer", "content": "You are terse."},
        *HI,
        {"role": "Developer", "content": "x"},
    ]
    out, _ = chat(messages=messages)
    assert [m["role"] for m in out["messages"]] == ["system", "user", "system"]
    assert messages[0]["role"] == "developer"


def test_every_request_is_for_the_one_model_of_the_fleet() -> None:
    for model in (None, "gpt-4o", "deepseek-v4.1-flash", "deepseek-v4.1-flash:some-lora"):
        assert chat(model=model)[0]["model"] == "deepseek-v4.1-flash"


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest", "file:///etc/shadow", "/etc/shadow", "", None, 3]
)
def test_the_engine_is_never_made_to_fetch_an_address_or_a_file(url: object) -> None:
    for kind in ("image_url", "video_url", "audio_url"):
        for part in ({"type": kind, kind: {"url": url}}, {"type": kind, kind: url}):
            if url is None and part[kind] is None:
                continue
            with pytest.raises(BadRequest) as refused:
                chat(messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, part]}])
            assert refused.value.param == f"messages[0].content[1].{kind}"
    data = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    chat(messages=[{"role": "user", "content": [data]}])


def test_what_fits_behind_a_prompt_is_read_from_the_engines_refusal() -> None:
    refusal = (
        "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested "
        "a total of 4110 tokens: 15 tokens from the input messages and 4095 tokens for the completion. …"
    )
    assert policy.room_left(refusal) == 4081
    assert policy.room_left(refusal.replace("15 tokens", "4096 tokens")) is None
    assert (
        policy.room_left("The input (5000 tokens) is longer than the model's context length (4096 tokens).")
        is None
    )


# --- properties

switch = st.sampled_from([True, False, None, "true", "off", {"type": "enabled"}, {"type": "disabled"}])
effort = st.one_of(
    st.none(), st.sampled_from(["none", *policy.TIER_BUDGETS]), st.integers(0, 100), st.floats(0, 0.99)
)
tokens = st.one_of(st.none(), st.integers(1, 2**40))
bodies = st.fixed_dictionaries(
    {
        "messages": st.lists(
            st.fixed_dictionaries({"role": st.sampled_from(["developer", "user"])}), min_size=1
        )
    },
    optional={
        "thinking": switch,
        "enable_thinking": switch,
        "reasoning_effort": effort,
        "reasoning": st.fixed_dictionaries({}, optional={"enabled": switch, "effort": effort}),
        "chat_template_kwargs": st.fixed_dictionaries(
            {},
            optional={
                "thinking": switch,
                "enable_thinking": switch,
                "reasoning_effort": effort,
                "x": st.none(),
            },
        ),
        "max_tokens": tokens,
        "max_completion_tokens": tokens,
        "stream": st.booleans(),
        "n": st.integers(1, 4),
        "temperature": st.floats(0, 2),
    },
)
all_limits = st.builds(
    Limits, st.just("m"), st.integers(256, 1 << 20), st.integers(0, 1 << 20), st.booleans()
)


@given(bodies, all_limits)
def test_twice_is_the_same_as_once_and_the_input_is_not_touched(body: dict[str, Any], limits: Limits) -> None:
    before = copy.deepcopy(body)
    once, effective = policy.chat(body, limits)
    assert body == before
    twice, again = policy.chat(once, limits)
    assert twice == once
    assert (again.thinking, again.effort, again.max_tokens) == (
        effective.thinking, effective.effort, effective.max_tokens,
    )  # fmt: skip


@given(bodies, all_limits)
def test_the_cap_is_never_exceeded(body: dict[str, Any], limits: Limits) -> None:
    out, effective = policy.chat(body, limits)
    if limits.max_tokens_cap:
        for name in ("max_tokens", "max_completion_tokens"):
            assert 1 <= out[name] <= limits.max_tokens_cap
            assert out[name] < limits.context_length
        assert effective.max_tokens == out["max_tokens"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
known = st.sampled_from(
    ["messages", "prompt", "model", "stream", "thinking", "enable_thinking", "reasoning", "reasoning_effort",
     "chat_template_kwargs", "max_tokens", "max_completion_tokens", "min_tokens", "n", "rid"]
)  # fmt: skip


@given(st.dictionaries(known | st.text(), json_values), st.booleans())
def test_any_json_object_is_either_served_within_the_cap_or_a_bad_request(
    body: dict[str, Any], valid: bool
) -> None:
    for rules, needed in ((policy.chat, {"messages": HI}), (policy.completions, {"prompt": "1"})):
        try:
            out, _ = rules(body | needed if valid else body, LIMITS)
        except BadRequest as refused:
            assert refused.message
        else:
            assert 1 <= out["max_tokens"] <= 32768
