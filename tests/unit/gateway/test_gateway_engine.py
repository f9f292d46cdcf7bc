"""Connections to the engine: kept when they can be, never used twice at once, and closed on what is no answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop
from dsv41_supervisor.gateway import engine as engine_module
from dsv41_supervisor.gateway.engine import MAX_HEAD_BYTES, Connection, Engine, EngineAbsent
from dsv41_supervisor.gateway.incoming import EngineRefused
from hypothesis import given, settings
from hypothesis import strategies as st

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

Answering = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Upstream:
    """A listening engine. `questions`: each with the number of the connection that it came on."""

    def __init__(self, answers: Answering) -> None:
        self.questions: list[tuple[int, bytes]] = []
        self.gone: asyncio.Queue[int] = asyncio.Queue()
        self.base = ""
        self._n = 0
        self._answers = answers
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._n += 1
        number = self._n
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                self.questions.append((number, head + body))
                await self._answers(body, writer)
        writer.close()
        self.gone.put_nowait(number)


def raw(said: bytes, *, close: bool = False) -> Answering:
    async def answers(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        if close:
            writer.close()

    return answers


@contextlib.asynccontextmanager
async def asking(answers: Answering, silence_s: float = 30.0) -> AsyncIterator[tuple[Engine, Upstream]]:
    upstream = Upstream(answers)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    engine = Engine(10.0, silence_s)
    yield engine, upstream
    engine.close()
    server.close()


async def told(engine: Engine, upstream: Upstream, body: bytes | None = b"{}") -> tuple[int, bytes]:
    answer = await engine.ask(upstream.base, "/v1/x", body)
    try:
        assert await answer.begins()
        return answer.status, await answer.whole()
    finally:
        answer.close()


@pytest.mark.asyncio
async def test_what_is_asked_is_plain_http_and_the_connection_serves_again() -> None:
    async with asking(raw(OK)) as (engine, upstream):
        answer = await engine.ask(upstream.base, "/v1/x", b'{"a": 1}', {"x-override-rid": "r1"})
        assert await answer.begins() and await answer.whole() == b"{}"
        assert (answer.status, answer.media_type) == (200, "application/json")
        assert await told(engine, upstream, None) == (200, b"{}")
        (first, post), (second, get) = upstream.questions
    host = upstream.base.removeprefix("http://").encode()
    assert first == second == 1
    assert post == (
        b"POST /v1/x HTTP/1.1\r\nHost: " + host + b"\r\nAccept-Encoding: identity\r\n"
        b"Content-Type: application/json\r\nContent-Length: 8\r\nx-override-rid: r1\r\n\r\n" + b'{"a": 1}'
    )
    assert get == b"GET /v1/x HTTP/1.1\r\nHost: " + host + b"\r\nAccept-Encoding: identity\r\n\r\n"


@pytest.mark.asyncio
async def test_a_large_question_arrives_whole() -> None:
    body = json.dumps({"prompt": "x" * (3 << 20)}).encode()
    async with asking(raw(OK)) as (engine, upstream):
        assert await told(engine, upstream, body) == (200, b"{}")
        assert upstream.questions[0][1].endswith(b"\r\n\r\n" + body)


@pytest.mark.asyncio
async def test_two_at_once_have_a_connection_each() -> None:
    async with asking(raw(OK)) as (engine, upstream):
        both = await asyncio.gather(told(engine, upstream), told(engine, upstream))
        assert both == [(200, b"{}"), (200, b"{}")]
        assert sorted(number for number, _ in upstream.questions) == [1, 2]


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        OK + OK,  # a second answer to one question
        OK + b"\x00",
    ],
)
@pytest.mark.asyncio
async def test_a_connection_that_cannot_go_on_is_not_used_again(said: bytes) -> None:
    async with asking(raw(said)) as (engine, upstream):
        for _ in range(2):
            assert await told(engine, upstream) == (200, b"{}")
        assert [number for number, _ in upstream.questions] == [1, 2]


@pytest.mark.asyncio
async def test_what_is_said_unasked_ends_the_connection() -> None:
    later: list[asyncio.StreamWriter] = []

    async def answers(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        later.append(writer)

    async with asking(answers) as (engine, upstream):
        await told(engine, upstream)
        later[0].write(OK)
        assert await asyncio.wait_for(upstream.gone.get(), 10) == 1
        assert await told(engine, upstream) == (200, b"{}")
        assert upstream.questions[-1][0] == 2


@pytest.mark.asyncio
async def test_a_connection_is_not_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "KEEP_S", 0.0)
    async with asking(raw(OK)) as (engine, upstream):
        for _ in range(3):
            await told(engine, upstream)
        assert [number for number, _ in upstream.questions] == [1, 2, 3]
        assert [await asyncio.wait_for(upstream.gone.get(), 10) for _ in range(2)] == [1, 2]


@pytest.mark.asyncio
async def test_a_connection_that_is_just_being_closed_is_not_asked() -> None:
    """Between the engine's end of it and the loop's telling us so; its 502 would be of our own making."""
    first: list[asyncio.StreamWriter] = []

    async def answers(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        first.append(writer)

    async with asking(answers) as (engine, upstream):
        await told(engine, upstream)
        (kept,) = engine._open
        first[0].close()
        async with asyncio.timeout(10):
            while kept._transport is not None and not kept._transport.is_closing():
                await asyncio.sleep(0)
        assert await told(engine, upstream) == (200, b"{}")
        assert [number for number, _ in upstream.questions] == [1, 2]


@pytest.mark.asyncio
async def test_an_engine_that_ends_before_it_has_read_is_not_waited_for() -> None:
    """It answers without a length, ends its side, and reads no more of a question larger than the sockets hold."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too large\r\n\r\n{}")
        writer.write_eof()
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1024)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    engine = Engine(10.0, 30.0)
    answer = await engine.ask(base, "/v1/x", b"x" * (32 << 20))
    try:
        async with asyncio.timeout(20):
            assert await answer.begins() and (answer.status, await answer.whole()) == (413, b"{}")
    finally:
        ended.set()
        answer.close()
        engine.close()
        server.close()


@pytest.mark.asyncio
async def test_those_to_an_engine_before_are_closed() -> None:
    async with asking(raw(OK)) as (engine, before), asking(raw(OK)) as (_, after):
        await told(engine, before)
        await told(engine, after)
        assert await asyncio.wait_for(before.gone.get(), 10) == 1


@pytest.mark.asyncio
async def test_an_answer_that_nobody_reads_on_ends_its_connection() -> None:
    async with asking(raw(CHUNKED + b"3\r\none\r\n")) as (engine, upstream):
        answer = await engine.ask(upstream.base, "/v1/x", b"{}")
        assert await answer.begins() and await answer.next() == b"one"
        answer.close()
        assert await asyncio.wait_for(upstream.gone.get(), 10) == 1


@pytest.mark.asyncio
async def test_nobody_to_ask() -> None:
    async with asking(raw(OK)) as (engine, upstream):
        pass
    for base in (upstream.base, "http://", "http://127.0.0.1:99999"):
        with pytest.raises(EngineAbsent):
            await engine.ask(base, "/v1/x", b"{}")


@pytest.mark.parametrize(
    "said",
    [
        b"", b"garbage\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", OK[:-1], OK[:20], CHUNKED + b"5\r\none", CHUNKED + b"zz\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 101 x\r\nUpgrade: y\r\nConnection: upgrade\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n123456",
    ],
)  # fmt: skip
@pytest.mark.asyncio
async def test_no_whole_answer_is_a_lost_engine(said: bytes) -> None:
    async with asking(raw(said, close=True)) as (engine, upstream):
        with pytest.raises(EngineRefused) as refused:
            await told(engine, upstream)
        assert refused.value.failure.code == "engine_lost"
        async with asyncio.timeout(10):
            while engine._open:
                await asyncio.sleep(0)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * (2 * MAX_HEAD_BYTES),
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * MAX_HEAD_BYTES,
        b"HTTP/1.1 100 Continue\r\n\r\n" * MAX_HEAD_BYTES,
        CHUNKED + b"1\r\nx\r\n0\r\nX: " + b"a" * (4 * MAX_HEAD_BYTES),
        CHUNKED + b"1\r\nx\r\n1;" + b"a" * (4 * MAX_HEAD_BYTES),
    ],
    ids=["header", "headers", "continues", "trailer", "extension"],
)
@pytest.mark.asyncio
async def test_what_is_no_body_has_a_bound(said: bytes) -> None:
    async with asking(raw(said)) as (engine, upstream):
        with pytest.raises(EngineRefused):
            await asyncio.wait_for(told(engine, upstream), 30)


@pytest.mark.asyncio
async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async with asking(raw(b"HTTP/1.1 200 OK\r\n\r\n{}", close=True)) as (engine, upstream):
        assert await told(engine, upstream) == (200, b"{}")


@pytest.mark.asyncio
async def test_continue_is_no_answer() -> None:
    async with asking(raw(b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + OK)) as (engine, upstream):
        assert [await told(engine, upstream) for _ in range(2)] == [(200, b"{}")] * 2
        assert {number for number, _ in upstream.questions} == {1}


@pytest.mark.asyncio
async def test_a_slow_reader_stops_the_engine() -> None:
    """What it has said is bounded by both sockets' buffers and what is held here."""
    written = 0
    piece = b"x" * 65536

    async def answers(_: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(CHUNKED)
        while True:
            writer.write(b"10000\r\n" + piece + b"\r\n")
            await writer.drain()
            written += len(piece)

    async with asking(answers) as (engine, upstream):
        answer = await engine.ask(upstream.base, "/v1/x", b"{}")
        assert await answer.begins()
        before = -1
        while written != before or not written:
            before = written
            await asyncio.sleep(0.2)
        assert before < 64 << 20
        got = 0
        while got < before + (1 << 20):  # and goes on when it is read again
            got += len(await answer.next() or b"")
        answer.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_client_that_leaves_while_its_engine_is_connected_to_leaves_nothing(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave() -> None:
        async with asking(raw(OK)) as (engine, upstream):
            client = asyncio.ensure_future(engine.ask(upstream.base, "/v1/x", b"{}"))
            made = Connection.connection_made

            def made_and_left(connection: Connection, transport: asyncio.BaseTransport) -> None:
                made(connection, transport)
                client.cancel()

            monkeypatch.setattr(Connection, "connection_made", made_and_left)
            with pytest.raises(asyncio.CancelledError):
                await client
            assert await asyncio.wait_for(upstream.gone.get(), 10) == 1
            assert not engine._open

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(leave())


PIECES = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


@settings(max_examples=60)
@given(pieces=PIECES, cuts=st.lists(st.integers(0, 400), max_size=8), chunked=st.booleans())
def test_however_it_is_cut_the_body_is_the_same(pieces: list[bytes], cuts: list[int], chunked: bool) -> None:
    body = b"".join(pieces)
    if chunked:
        text = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        text = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]

    async def answers(_: bytes, writer: asyncio.StreamWriter) -> None:
        for begin, end in zip(edges, edges[1:], strict=False):
            writer.write(text[begin:end])
            await asyncio.sleep(0)

    async def both() -> None:
        async with asking(answers) as (engine, upstream):
            assert [await told(engine, upstream) for _ in range(2)] == [(200, body)] * 2
            assert {number for number, _ in upstream.questions} == {1}

    asyncio.run(both())
