"""Reading an engine's answer: silence is noticed again and again, and is never mistaken for anything else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from dsv41_supervisor.gateway.incoming import EngineConnector, EngineRefused, Incoming
from dsv41_supervisor.gateway.outlet import ClientGone

pytestmark = pytest.mark.asyncio
SILENCE_S = 0.05
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Engine:
    """The other end of one answer, as bytes."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def say(self, *pieces: bytes) -> None:
        self._writer.write(b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces))

    def write(self, raw: bytes) -> None:
        self._writer.write(raw)


@contextlib.asynccontextmanager
async def answering() -> AsyncIterator[tuple[Engine, aiohttp.ClientResponse]]:
    """An answer whose head has come."""
    asked: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        asked.set_result(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with aiohttp.ClientSession(connector=EngineConnector(), read_bufsize=1 << 14) as session:
        response = await session.get(url)
        writer = await asked
        yield Engine(writer), response
        response.close()
        writer.close()
    server.close()


async def test_each_silence_is_told_and_what_comes_then_is_not_lost() -> None:
    async with answering() as (engine, response):
        with Incoming(response, SILENCE_S) as pieces:
            assert [await pieces.next() for _ in range(3)] == [b"", b"", b""]
            engine.say(b"one")
            assert await said(pieces) == b"one"
            assert [await pieces.next(lambda _: True) for _ in range(2)] == [b"", b""]


async def said(pieces: Incoming) -> bytes | None:
    """The next that is no silence: on a busy machine there may be some before it."""
    while (piece := await pieces.next()) == b"":
        pass
    return piece


async def test_a_reader_that_is_busy_meanwhile_is_not_interrupted() -> None:
    async with answering() as (engine, response):
        with Incoming(response, SILENCE_S) as pieces:
            engine.say(b"one")
            assert await said(pieces) == b"one"
            await asyncio.sleep(4 * SILENCE_S)  # a client that reads slowly
            began = asyncio.get_running_loop().time()
            assert await pieces.next() == b""
            assert asyncio.get_running_loop().time() - began >= SILENCE_S * 0.9


async def test_an_end_from_outside_in_the_same_moment_as_silence_wins() -> None:
    async with answering() as (_, response):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60.0) as scope:
                with Incoming(response, SILENCE_S) as pieces:
                    task = asyncio.current_task()
                    assert task is not None
                    silenced = task.cancel

                    class Both:
                        """The task, ended by something else whenever silence interrupts it."""

                        def cancel(self) -> None:
                            scope.reschedule(asyncio.get_running_loop().time())
                            silenced()

                        uncancel = staticmethod(task.uncancel)

                    pieces._task = Both()  # type: ignore[assignment]
                    while True:
                        assert await pieces.next() == b""


async def test_nothing_watches_once_the_block_is_left() -> None:
    async with answering() as (_, response):
        with Incoming(response, SILENCE_S) as pieces:
            assert await pieces.next() == b""
        await asyncio.sleep(3 * SILENCE_S)  # would be cancelled


async def test_what_is_handed_on_wakes_nobody_until_no_more_is_taken() -> None:
    async with answering() as (engine, response):
        taken: list[bytes] = []

        def take(piece: bytes) -> bool:
            taken.append(piece)
            return b"enough" not in piece

        with Incoming(response, 30.0) as pieces:
            reader = asyncio.ensure_future(pieces.next(take))
            for piece in (b"one", b"two"):
                engine.say(piece)
                while b"".join(taken)[-3:] != piece:
                    await asyncio.sleep(0.001)
                assert not reader.done()
            engine.say(b"enough")
            assert await reader == b"" and b"".join(taken) == b"onetwoenough"
            engine.say(b"later")  # waits for the reader, in order
            engine.say(b"last")
            engine.write(b"0\r\n\r\n")
            assert await pieces.next(take) is None and b"".join(taken) == b"onetwoenoughlaterlast"


async def test_more_than_aiohttp_holds_is_handed_on_in_order() -> None:
    async with answering() as (engine, response):
        sent = [b"%06d" % i for i in range(50_000)]
        taken: list[bytes] = []
        with Incoming(response, 30.0) as pieces:
            engine.say(*sent)
            engine.write(b"0\r\n\r\n")
            assert await pieces.next(lambda piece: not taken.append(piece)) is None
        assert b"".join(taken) == b"".join(sent)


@pytest.mark.parametrize("broken", [b"this is no chunk\r\n", b""])
async def test_an_answer_that_breaks_off_is_told_at_once(broken: bytes) -> None:
    async with answering() as (engine, response):
        with Incoming(response, 30.0) as pieces:
            reader = asyncio.ensure_future(pieces.next(lambda _: True))
            engine.say(b"one")
            await asyncio.sleep(0.01)
            engine.write(broken)
            if not broken:
                engine._writer.close()
            with pytest.raises(EngineRefused):
                await asyncio.wait_for(reader, 10)


async def test_what_the_taker_raises_ends_the_reading() -> None:
    def take(_: bytes) -> bool:
        raise ClientGone

    async with answering() as (engine, response):
        with Incoming(response, 30.0) as pieces:
            engine.say(b"one")
            with pytest.raises(ClientGone):
                await asyncio.wait_for(pieces.next(take), 10)
