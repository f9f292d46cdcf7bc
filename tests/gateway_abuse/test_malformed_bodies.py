"""Attack: bodies that are nearly right: one field of another type, too deep, too many, not UTF-8, not JSON.

What the client sees: a 4xx of its protocol that says what is wrong, or an answer. Never a 5xx, never silence.
What the operator sees: nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway_abuse.target import PROMPT, Target

_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
_COMMON = {"model": "demo", "stream": False, "temperature": 0.5, "thinking": {"type": "enabled", "budget_tokens": 9},
           "enable_thinking": True, "reasoning": {"enabled": True, "effort": "high", "summary": "auto"},
           "chat_template_kwargs": {"thinking": True, "reasoning_effort": 7}, "metadata": {"a": "b"},
           "output_config": {"effort": "low"}, "n": 1, "min_tokens": 0, "stop": ["x"]}  # fmt: skip
_PARTS = [{"type": "text", "text": PROMPT}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
_CHAT = _COMMON | {"messages": [{"role": "developer", "content": PROMPT}, {"role": "user", "content": _PARTS}],
                   "max_tokens": 5, "max_completion_tokens": 5, "tools": [_TOOL], "reasoning_effort": "low",
                   "stream_options": {"include_usage": True}, "prompt": ["x"],
                   "response_format": {"type": "text"}}  # fmt: skip
_BLOCKS = [{"type": "text", "text": PROMPT}, {"type": "image", "source": {"type": "base64", "data": "AA=="}},
           {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}]}]  # fmt: skip
_MESSAGES = _COMMON | {"messages": [{"role": "user", "content": _BLOCKS}], "max_tokens": 5,
                       "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
                       "tools": [{"name": "f", "input_schema": {"type": "object"}}], "prompt": ["x"]}  # fmt: skip
_TEXT = {"type": "input_text", "text": PROMPT}
_ITEMS = [{"type": "message", "role": "user", "content": [_TEXT]},
          {"type": "function_call_output", "call_id": "c", "output": [_TEXT]}]  # fmt: skip
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": _COMMON | {"prompt": [PROMPT, "x"], "max_tokens": 5, "stream_options": {"include_usage": False}},
    "/v1/responses": _COMMON | {"input": _ITEMS, "max_output_tokens": 5, "tools": [{"type": "function", "name": "f"}]},
    "/v1/messages": _MESSAGES,
    "/v1/messages/count_tokens": _MESSAGES,
    "/tokenize": {"model": "demo", "messages": [{"role": "user", "content": PROMPT}], "prompt": None},
    "/v1/tokenize": {"model": "demo", "prompt": PROMPT},
}

_SPOILT = st.sampled_from([
    None, True, False, 0, -1, 1, 2**31, -(2**63), 10**400, 1e308, -0.0, 0.5, "", "0", "x" * 500, "\x00", "\ud800", "٣",
    "none", "1e999", "9" * 5000, "..", [], [[]], [[[]]], [None], [0], [""], [{}], {}, {"": {}}, {"type": []},
    {"type": {}}, {"type": None}, {"type": "image", "source": []}, {"url": []}, {"effort": []}, {"role": "user"},
])  # fmt: skip
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [p for name, v in inside for p in ((*at, name), *places(v, (*at, name)))]


def replaced(body: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    copy = dict(body) if isinstance(body, dict) else list(body)
    copy[place[0]] = replaced(body[place[0]], place[1:], value)
    return copy


@st.composite
def spoilt_bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A good body with one to three values replaced, half of the time streamed."""
    path = draw(st.sampled_from(sorted(GOOD)))
    body: Any = GOOD[path] | {"stream": draw(st.booleans())}
    for _ in range(draw(st.integers(1, 3))):
        where = places(body)
        if not where:
            break
        body = replaced(body, draw(st.sampled_from(where)), draw(_SPOILT | _ANYTHING))
    return path, _dumps(body)


def _dumps(body: Any) -> bytes:
    """With NaN, with halves of surrogates as escapes, and with integers of any length."""
    return json.dumps(body).encode()


def must_be_refused_or_served(target: Target, path: str, raw: bytes) -> int:
    answer = target.post(path, raw)
    assert answer.status < 500, (path, raw[:500], answer)
    if answer.status != 200:
        must_have_the_shape_of_an_error(path, answer.status, answer.body)
    return answer.status


def must_have_the_shape_of_an_error(path: str, status: int, body: bytes) -> None:
    said = json.loads(body)
    error = said["error"]
    assert 400 <= status < 500 and isinstance(error["message"], str) and error["message"], (status, said)
    assert isinstance(error["type"], str) and isinstance(error["code"], str), said
    if path.startswith("/v1/messages"):
        assert said["type"] == "error", said
    else:
        assert set(error) == {"message", "type", "param", "code"}, said


@given(case=spoilt_bodies())
@settings(max_examples=400, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_body_with_spoilt_values_is_refused_in_words_or_served(_target: Target, case: tuple[str, bytes]) -> None:
    must_be_refused_or_served(_target, *case)


@pytest.mark.parametrize("path", sorted(GOOD))
def test_each_value_of_each_wrong_type_is_refused_in_words_or_served(target: Target, path: str) -> None:
    """Not drawn but all: every place in the body, by the values that are easiest to forget."""
    served = must_be_refused_or_served(target, path, _dumps(GOOD[path]))
    assert served == 200, "what is spoilt was good before"
    for place in places(GOOD[path]):
        for value in ([], {}, [[]], 10**400):
            must_be_refused_or_served(target, path, _dumps(replaced(GOOD[path], place, value)))


@given(raw=st.binary(max_size=60) | st.text(max_size=60).map(lambda t: t.encode("utf-8", "surrogatepass")))
@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_bytes_that_are_no_json_are_a_400(_target: Target, raw: bytes) -> None:
    assert must_be_refused_or_served(_target, "/v1/chat/completions", raw) == 400


_CUT = json.dumps(GOOD["/v1/chat/completions"]).encode()


@pytest.mark.parametrize(
    "raw",
    [
        *(b"[" * depth + b"]" * depth for depth in (10, 1000, 100_000)),
        *(b'{"a":' * depth + b"1" + b"}" * depth for depth in (900, 960, 980, 1000, 100_000)),
        *(_CUT[:cut] for cut in range(0, len(_CUT), 150)),
        _CUT.decode().encode("utf-16"), b"\xef\xbb\xbf" + _CUT, _CUT + b"\x00", b"\x00" + _CUT, _CUT + _CUT,
        b'{"messages": 1, "messages": [], "messages": [{"role": "user", "content": "x"}]}',
        b'{"messages": [{"role": "user", "role": [], "content": "x"}]}',
        b'{"max_tokens": ' + b"9" * 100_000 + b', "messages": [{"role": "user", "content": "x"}]}',
        b'{"max_tokens": 1e99999, "messages": [{"role": "user", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
        b'{"messages": [{"role": "\\u0000", "content": "\\u0000"}], "\\u0000": 1}',
    ],
    ids=lambda raw: f"{raw[:16]!r}-{len(raw)}",
)
def test_a_body_that_is_broken_as_a_whole_is_refused_in_words_or_served(_target: Target, raw: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/messages"):
        must_be_refused_or_served(_target, path, raw)


def test_a_body_that_can_just_be_read_can_be_written_too(target: Target) -> None:
    """Python writes JSON with a little less room for depth than it reads it with."""
    for depth in range(930, 1000):
        deep = b"[" * depth + b"]" * depth
        raw = b'{"messages": [{"role": "user", "content": "x"}], "metadata": ' + deep + b"}"
        must_be_refused_or_served(target, "/v1/chat/completions", raw)


def test_that_was_all_without_a_word_in_the_log(target: Target) -> None:
    target.must_serve()


_ASKED = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        *(("/v1/chat/completions", "n", n) for n in (129, 10**9, 10**400, 1e300)),
        *(("/v1/chat/completions", "top_logprobs", k) for k in (21, 10**6, -1, "1000000", 1e300, [])),
        *(("/v1/completions", "logprobs", k) for k in (21, 10**6, -1, "1000000", {})),
        ("/v1/responses", "top_logprobs", 10**6),
        *((path, "top_k", k) for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
          for k in (2**31, 10**18, -2, "2147483648", 2.0**31)),
        *(("/v1/completions", "prompt", ids) for ids in (
            [129_280], [-1], [1, 10**9], [[1], [10**9]], ["x", [-1]], [1, "1000000000"], [1, [5]], ["x", 5], [[]], 5,
            [5.5], [1e300])),
        *(("/v1/chat/completions", "input_ids", ids) for ids in ([10**9], [], [[1], [-1]])),
        ("/v1/completions", "prompt", ["x"] * 2049),
        ("/v1/completions", "prompt", [[1]] * 300_000),
        ("/v1/chat/completions", "prompt", ["x"] * 2049),
        ("/v1/completions", "prompt", ["x"] * 1025),  # with n = 2, below
        ("/v1/chat/completions", "stop_regex", "(a+)+$"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_one_request_that_would_take_the_engine_down_is_refused(
    target: Target, path: str, field: str, value: object
) -> None:
    """SGLang 0.5.23 multiplies its lists by `n`, asks torch for the best `top_logprobs` of a smaller vocabulary, puts
    `top_k` into 32 bits, looks token ids up unseen and matches `stop_regex`, all where every request runs."""
    before = target.upstream.requests
    good = {"prompt": "x"} if path == "/v1/completions" else {"input": "x"} if path == "/v1/responses" else _ASKED
    answer = target.post(path, {"n": 2} | good | {field: value})
    assert answer.status == 400 and field in answer.error["message"], answer
    assert target.upstream.requests == before


@pytest.mark.parametrize(
    ("path", "more"),
    [("/v1/chat/completions", {"n": 128.0, "logprobs": True, "top_logprobs": 20}),
     ("/v1/completions", {"logprobs": 0, "n": 1}), ("/v1/completions", {"prompt": ["x"] * 2048}),
     ("/v1/completions", {"prompt": [0, 129_279]}), ("/v1/completions", {"prompt": [5.0] * 3000}),
     ("/v1/completions", {"prompt": [[1], "x"]}),
     ("/v1/responses", {"top_logprobs": 5.0, "top_k": -1}),
     ("/v1/messages", {"top_k": 40}), ("/v1/chat/completions", {"top_k": 2**31 - 1})],
)  # fmt: skip
def test_what_the_engine_can_do_passes(target: Target, path: str, more: dict[str, Any]) -> None:
    good = {"prompt": "x"} if path == "/v1/completions" else {"input": "x"} if path == "/v1/responses" else _ASKED
    assert target.post(path, good | more).status == 200
