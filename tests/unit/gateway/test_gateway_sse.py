"""sse.py: bytes are never changed, and only whole events are let out."""

from __future__ import annotations

from dsv41_supervisor.gateway import sse
from hypothesis import given
from hypothesis import strategies as st

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
    assert sse.event({"error": {}}) == b'data: {"error": {}}\n\n'
    assert sse.event({"error": {}}, after_boundary=False) == b'\n\ndata: {"error": {}}\n\n'
