"""observe.py: what an answer used and why it ended, in each protocol, from the bytes SGLang 0.5.23 sends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dsv41_supervisor.gateway.observe import Observer, Seen
from dsv41_supervisor.gateway.protocols import Protocol
from hypothesis import given
from hypothesis import strategies as st

CHAT = (
    b'data: {"id":"r1","object":"chat.completion.chunk","created":1,"model":"demo","choices":[{"index":0,"delta":'
    b'{"reasoning_content":null,"content":" was"},"logprobs":null,"finish_reason":null,"matched_stop":null}]}\n\n'
)
CHAT_END = (
    b'data: {"id":"r1","object":"chat.completion.chunk","created":1,"model":"demo","choices":[{"index":0,"delta":'
    b'{"reasoning_content":null},"logprobs":null,"finish_reason":"length","matched_stop":null}]}\n\n'
)
CHAT_USAGE = (
    b'data: {"id":"r1","object":"chat.completion.chunk","created":1,"model":"demo","choices":[],"usage":'
    b'{"prompt_tokens":6,"total_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":5},'
    b'"reasoning_tokens":2,"completion_tokens_details":null}}\n\n'
)
DONE = b"data: [DONE]\n\n"
MESSAGE = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant",'
    b'"content":[],"model":"demo","usage":{"input_tokens":73,"output_tokens":0,"cache_read_input_tokens":1}}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":'
    b'" one"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":'
    b'{"output_tokens":3}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
)


def responses(status: str, **more: Any) -> bytes:
    begun = {"id": "resp_1", "object": "response", "status": "in_progress", "output": [], "usage": None, "error": None}
    usage = {
        "input_tokens": 74, "input_tokens_details": {"cached_tokens": 20}, "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 4}, "total_tokens": 78,
    }  # fmt: skip
    ended = begun | {"status": status, "usage": usage} | more
    named = (("created", begun), ("in_progress", begun), (status, ended))
    return b"".join(
        b"event: response.%s\ndata: " % name.encode()
        + json.dumps({"type": f"response.{name}", "response": said, "sequence_number": i}).encode()
        + b"\n\n"
        for i, (name, said) in enumerate(named)
    )


def seen(protocol: Protocol, raw: bytes, *, hide_usage: bool = False) -> tuple[Seen, bytes]:
    observer = Observer(protocol, Seen(), hide_usage=hide_usage)
    return observer.seen, observer.look(raw)


def test_a_chat_stream_says_its_use_and_its_end() -> None:
    raw = CHAT + CHAT_END + CHAT_USAGE + DONE
    told, out = seen(Protocol.OPENAI, raw)
    assert out == raw
    counts = (told.prompt_tokens, told.cached_tokens, told.completion_tokens, told.reasoning_tokens)
    assert counts == (6, 5, 3, 2) and told.headers() == {"x-dsv41-finish": "length"}


def test_only_the_usage_chunk_that_nobody_asked_for_is_taken_away() -> None:
    raw = CHAT + CHAT_END + CHAT_USAGE + DONE
    told, out = seen(Protocol.OPENAI, raw, hide_usage=True)
    assert out == CHAT + CHAT_END + DONE and told.completion_tokens == 3
    # Text that looks like one is text: quotes in it are escaped.
    text = json.dumps('"choices":[],"usage":{').encode()
    lookalike = CHAT.replace(b'" was"', text)
    assert seen(Protocol.OPENAI, lookalike, hide_usage=True)[1] == lookalike
    # A usage beside choices is what a client gets that asked for it in every chunk.
    continuous = CHAT.replace(b'"model":"demo"', b'"model":"demo","usage":{"prompt_tokens":1}')
    assert seen(Protocol.OPENAI, continuous, hide_usage=True)[1] == continuous


def test_a_loop_that_was_stopped_is_no_ordinary_stop() -> None:
    loop = b'"finish_reason":"stop","matched_stop":"repetition: exact repetition from output token 128, 1 x 64"'
    raw = CHAT_END.replace(b'"finish_reason":"length","matched_stop":null', loop)
    assert seen(Protocol.OPENAI, raw)[0].headers() == {"x-dsv41-finish": "repetition; token=128"}
    told, out = seen(Protocol.OPENAI, raw + DONE)
    assert out == raw + b": x-dsv41-finish repetition; token=128\n\n" + DONE, "a stream has no header for it"
    raw = raw.replace(b"repetition: ", b"other: ")
    assert seen(Protocol.OPENAI, raw + DONE)[1] == raw + DONE
    assert seen(Protocol.OPENAI, raw)[0].finish == "stop"


def stopped_by(text: str) -> dict[Protocol, tuple[bytes, dict[str, Any]]]:
    """The last events of a stream and a whole answer, as SGLang and the adapter say what stopped them."""
    chat = {"choices": [{"index": 0, "finish_reason": "stop", "matched_stop": text}]}
    end = {"stop_reason": "stop_sequence", "stop_sequence": text}
    details = {"incomplete_details": {"reason": "max_output_tokens", "matched_stop": text}}
    delta = {"type": "message_delta", "delta": end, "usage": {"output_tokens": 3}}
    return {
        Protocol.OPENAI: (b"data: " + json.dumps(chat).encode() + b"\n\n", chat),
        Protocol.ANTHROPIC: (b"event: message_delta\ndata: " + json.dumps(delta).encode() + b"\n\n", end),
        Protocol.RESPONSES: (responses("incomplete", **details), {"status": "incomplete", **details}),
    }


@given(
    st.sampled_from(list(Protocol)), st.sampled_from(["exact", "near", "shuffled"]), st.integers(0, 10**9 - 1),
    st.sampled_from(["", ", inside a tool call, whose arguments are not whole"]),
)  # fmt: skip
def test_a_loop_is_told_with_its_token_in_every_protocol(protocol: Protocol, kind: str, token: int, where: str) -> None:
    text = f"repetition: {kind} repetition from output token {token}, 9 copies of about 64 tokens{where}"
    raw, whole = stopped_by(text)[protocol]
    told, out = seen(protocol, raw)
    comment = b": x-dsv41-finish repetition; token=%d\n\n" % token
    assert (told.finish, told.at_token) == ("repetition", token)
    assert out == raw + comment, "behind the event that says it, and nowhere else"
    told = Seen()
    told.read(protocol, whole)
    assert told.headers() == {"x-dsv41-finish": f"repetition; token={token}"}


OWN = ["repetition", "repetition: ", "repetition of output token 5, ", "repetition: output token 5,", "\n"]


@given(st.sampled_from(list(Protocol)), st.sampled_from(OWN) | st.text(max_size=40))
def test_a_stop_text_of_the_clients_own_is_no_loop(protocol: Protocol, text: str) -> None:
    raw, whole = stopped_by(text)[protocol]
    told, out = seen(protocol, raw)
    assert out == raw and told.at_token is None
    assert told.finish == ("length" if protocol is Protocol.RESPONSES else "stop")
    told = Seen()
    told.read(protocol, whole)
    assert told.finish != "repetition" and told.at_token is None


def test_an_error_of_the_engine_inside_a_stream_is_an_end_of_its_own() -> None:
    raw = CHAT + b'data: {"error":{"object":"error","message":"out of memory","code":500}}\n\n' + DONE
    told, out = seen(Protocol.OPENAI, raw, hide_usage=True)
    assert told.finish == "error" and out == raw


def test_messages_say_their_use_with_the_cached_part_in_the_prompt() -> None:
    told, out = seen(Protocol.ANTHROPIC, MESSAGE)
    assert out == MESSAGE
    assert (told.prompt_tokens, told.cached_tokens, told.completion_tokens) == (74, 1, 3)
    assert told.finish == "length"
    raw = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"x"}}\n\n'
    assert seen(Protocol.ANTHROPIC, raw)[0].finish == "error"


@pytest.mark.parametrize(
    ("status", "more", "finish"),
    [
        ("completed", {"output": [{"type": "message"}]}, "stop"),
        ("completed", {"output": [{"type": "reasoning"}, {"type": "function_call"}]}, "tool_calls"),
        ("incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ("failed", {"error": {"code": "server_error", "message": "x"}}, "error"),
    ],
)
def test_a_response_says_its_use_and_its_end(status: str, more: Any, finish: str) -> None:
    raw = responses(status, **more)
    observer = Observer(Protocol.RESPONSES, Seen())
    first, _, rest = raw.partition(b"\n\n")
    observer.look(first + b"\n\n")
    assert observer.seen.begun is not None and observer.seen.begun["id"] == "resp_1" and observer.next_number == 1
    assert observer.look(rest) == rest
    told = observer.seen
    assert told.finish == finish and told.begun is None and observer.next_number == 3
    counts = (told.prompt_tokens, told.cached_tokens, told.completion_tokens, told.reasoning_tokens)
    assert counts == (74, 20, 4, 4)


@given(st.sampled_from(list(Protocol)), st.binary(max_size=200), st.booleans())
def test_bytes_that_mean_nothing_pass_unchanged(protocol: Protocol, raw: bytes, hide: bool) -> None:
    assert seen(protocol, raw, hide_usage=hide)[1] == raw


@pytest.mark.parametrize(
    "said",
    [
        {"choices": 1, "usage": []}, {"choices": [1]}, {"choices": [{"matched_stop": 5, "finish_reason": 5}]},
        {"usage": {"prompt_tokens": "x", "prompt_tokens_details": 3}}, {"message": 1, "delta": 1}, {"response": 1},
        {"status": "incomplete", "incomplete_details": None}, {"status": "completed", "output": None}, {},
        {"stop_sequence": 5, "delta": {"stop_sequence": []}},
        {"status": "incomplete", "incomplete_details": {"matched_stop": {}}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("protocol", list(Protocol))
def test_an_engine_that_says_odd_things_breaks_nothing(protocol: Protocol, said: Any) -> None:
    told = Seen()
    told.read(protocol, said)
    assert told.prompt_tokens is None
