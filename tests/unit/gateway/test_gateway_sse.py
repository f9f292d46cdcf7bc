"""sse.py: bytes are never changed, and only whole events are let out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from dsv41_supervisor.gateway import sse
from dsv41_supervisor.gateway.answers import engine_lost
from dsv41_supervisor.gateway.protocols import Protocol
from hypothesis import given
from hypothesis import strategies as st

LOST = engine_lost("gone", 5.0)
ERROR = {"message": "gone", "type": "engine_lost", "param": None, "code": "engine_lost"}

pieces = st.sampled_from(
    [b"data: x", b"data: {}", b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b": c", b"", b"data: [DONE]"]
)
texts = st.lists(pieces | st.binary(max_size=8), max_size=30).map(b"".join)


@given(texts, st.data())
def test_however_the_bytes_are_cut_they_come_out_the_same(text: bytes, data: st.DataObject) -> None:
    events, out = sse.WholeEvents(), b""
    rest = text
    while rest:
        n = data.draw(st.integers(1, len(rest)))
        let_out = events.feed(rest[:n])
        if let_out:
            assert let_out.endswith((b"\n\n", b"\r\n\r\n"))
        assert events.at_boundary
        out, rest = out + let_out, rest[n:]
    assert out + events.flush() == text


@given(texts)
def test_nothing_whole_is_held_back(text: bytes) -> None:
    events = sse.WholeEvents()
    events.feed(text)
    held = events.flush()
    assert b"\n\n" not in held and b"\r\n\r\n" not in held


def test_done_is_seen_across_any_cut() -> None:
    stream = b'data: {"a": 1}\n\ndata: [DONE]\n\n'
    for cut in range(len(stream)):
        events = sse.WholeEvents()
        events.feed(stream[:cut])
        assert not events.done
        events.feed(stream[cut:])
        assert events.done and events.at_boundary
    events = sse.WholeEvents()
    events.feed(b"data: [DONE]")
    assert not events.done
    events.flush()
    assert events.done


def test_the_word_done_inside_an_answer_is_not_the_end() -> None:
    events = sse.WholeEvents()
    events.feed(b'data: {"content": "data: [DONE]"}\n\n')
    assert not events.done


def test_an_enormous_event_is_let_out_in_pieces_and_remembered_as_open() -> None:
    events = sse.WholeEvents()
    piece = b"x" * (sse.MAX_HELD_BYTES // 2)
    assert events.feed(piece) == b"" and events.feed(piece) == b""
    assert len(events.feed(b"y")) == 2 * len(piece) + 1
    assert not events.at_boundary
    assert events.feed(b"\n\n") == b"\n\n" and events.at_boundary


def test_an_error_event_closes_what_was_left_open() -> None:
    whole = sse.error_events(Protocol.OPENAI, LOST)
    assert whole == b"data: " + json.dumps({"error": ERROR}).encode() + b"\n\n"
    assert sse.error_events(Protocol.OPENAI, LOST, after_boundary=False) == b"\n\n" + whole


def test_an_error_event_is_anthropics_where_anthropics_protocol_is_spoken() -> None:
    name, data = sse.error_events(Protocol.ANTHROPIC, LOST).decode().split("\n", 1)
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "error": {"type": "api_error", "message": "gone", "code": "engine_lost"},
    }


def test_a_responses_stream_ends_with_its_object_failed_and_an_error_event() -> None:
    begun = {"id": "resp_1", "status": "in_progress", "error": None, "output": []}
    failed, error, end = sse.error_events(Protocol.RESPONSES, LOST, begun=begun, number=7).decode().split("\n\n")
    assert end == "" and failed.startswith("event: response.failed\n") and error.startswith("event: error\n")
    said = json.loads(failed.partition("data: ")[2])
    assert said["type"] == "response.failed" and said["sequence_number"] == 7
    assert said["response"] == begun | {"status": "failed", "error": {"code": "server_error", "message": "gone"}}
    said = json.loads(error.partition("data: ")[2])
    assert (said["type"], said["sequence_number"], said["code"], said["error"]) == ("error", 8, "engine_lost", ERROR)
    # Codex asks again, five times, unless it reads a code of OpenAI's that says that the request is to blame.
    looped = replace(LOST, code="repetition")
    failed = sse.error_events(Protocol.RESPONSES, looped, begun=begun).partition(b"data: ")[2].partition(b"\n\n")[0]
    assert json.loads(failed)["response"]["error"] == {"code": "invalid_prompt", "message": "gone"}
    # Before the engine has begun one, there is no object that could fail.
    assert sse.error_events(Protocol.RESPONSES, LOST).startswith(b'event: error\ndata: {"type": "error"')


@pytest.mark.parametrize(
    ("protocol", "last", "done"),
    [
        (Protocol.OPENAI, b"data: [DONE]\n\n", True),
        (Protocol.OPENAI, b"data: [DONE]", True),
        (Protocol.OPENAI, b"event: message_stop\ndata: {}\n\n", False),
        (Protocol.RESPONSES, b"event: response.completed\ndata: {" + b"x" * 5_000 + b"}\n\n", True),
        (Protocol.RESPONSES, b"event: response.incomplete\ndata: {}\n\n", True),
        (Protocol.RESPONSES, b"event: response.failed\ndata: {}\n\n", True),
        (Protocol.RESPONSES, b"event: response.completed\ndata: {", False),
        (Protocol.RESPONSES, b"event: response.in_progress\ndata: {}\n\n", False),
        (Protocol.ANTHROPIC, b"event: message_stop\ndata: {}\n\n", True),
        (Protocol.ANTHROPIC, b"event: message_stop\ndata: {", False),
        (Protocol.ANTHROPIC, b"event: message_delta\ndata: {}\n\n", False),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
def test_each_protocol_has_its_own_last_event_however_it_is_cut(
    protocol: Protocol, last: bytes, done: bool, size: int
) -> None:
    events = sse.WholeEvents(protocol)
    raw = b"event: x\ndata: {}\n\n" + last
    out = b"".join(events.feed(raw[i : i + size]) for i in range(0, len(raw), size)) + events.flush()
    assert out == raw and events.done is done
