"""Reading an engine's answer: silence is noticed again and again, and is never mistaken for anything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from dsv41_supervisor.gateway.incoming import MAX_HELD_BYTES, EngineRefused, Incoming
from dsv41_supervisor.gateway.outlet import ClientGone

pytestmark = pytest.mark.asyncio
SILENCE_S = 0.05


class Connection:
    """Where an answer comes from: what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")

    def close(self) -> None:
        self.told.append("close")


@pytest_asyncio.fixture
async def connection() -> AsyncIterator[Connection]:
    yield Connection()


def answer(connection: Connection, silence_s: float = 30.0) -> Incoming:
    """One whose head has come."""
    made = Incoming(connection, silence_s)
    made.status = 200
    return made


def say(incoming: Incoming, *pieces: bytes, last: bool = False) -> None:
    """What one read of the socket brings."""
    for piece in pieces:
        incoming.put(piece)
    incoming.is_over = last
    incoming.arrived()


async def test_each_silence_is_told_and_what_comes_then_is_not_lost(connection: Connection) -> None:
    incoming = answer(connection, SILENCE_S)
    assert [await incoming.next() for _ in range(3)] == [b"", b"", b""]
    asyncio.get_running_loop().call_later(SILENCE_S / 2, say, incoming, b"one")
    assert await said(incoming) == b"one"
    assert [await incoming.next(lambda _: True) for _ in range(2)] == [b"", b""]
    incoming.close()


async def said(incoming: Incoming) -> bytes | None:
    """The next that is no silence: on a busy machine there may be some before it."""
    while (piece := await incoming.next()) == b"":
        pass
    return piece


async def test_a_head_that_does_not_come_is_silence_too(connection: Connection) -> None:
    incoming = Incoming(connection, SILENCE_S)
    assert [await incoming.begins() for _ in range(2)] == [False, False]
    incoming.status = 200
    incoming.arrived()
    assert await incoming.begins()
    incoming.close()


async def test_a_reader_that_is_busy_meanwhile_is_not_told_of_that_time(connection: Connection) -> None:
    incoming = answer(connection, SILENCE_S)
    say(incoming, b"one")
    assert await said(incoming) == b"one"
    assert await incoming.next() == b""  # from now on there is a timer
    await asyncio.sleep(4 * SILENCE_S)  # a client that reads slowly
    began = asyncio.get_running_loop().time()
    assert await incoming.next() == b""
    assert asyncio.get_running_loop().time() - began >= SILENCE_S * 0.9
    incoming.close()


async def test_an_end_from_outside_is_no_silence(connection: Connection) -> None:
    incoming = answer(connection, SILENCE_S)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5 * SILENCE_S):
            while True:
                assert await incoming.next() == b""
    incoming.close()


async def test_nothing_watches_once_it_is_closed(connection: Connection) -> None:
    incoming = answer(connection, SILENCE_S)
    assert await incoming.next() == b""
    incoming.close()
    assert incoming._timer is None and connection.told == ["close"]


async def test_what_is_handed_on_wakes_nobody_until_no_more_is_taken(connection: Connection) -> None:
    incoming, taken = answer(connection), list[bytes]()

    def take(piece: bytes) -> bool:
        taken.append(piece)
        return b"enough" not in piece

    reader = asyncio.ensure_future(incoming.next(take))
    await asyncio.sleep(0)
    for piece in (b"one", b"two"):
        say(incoming, piece)
        assert taken[-1] == piece  # in the very call
        await asyncio.sleep(0)
        assert not reader.done()
    say(incoming, b"en", b"ough")
    assert await reader == b"" and b"".join(taken) == b"onetwoenough"
    say(incoming, b"later")  # waits for the reader, in order
    say(incoming, b"last", last=True)
    assert await incoming.next(take) is None and b"".join(taken) == b"onetwoenoughlaterlast"


async def test_a_reader_that_does_not_come_back_stops_the_connection(connection: Connection) -> None:
    incoming = answer(connection)
    say(incoming, b"x" * MAX_HELD_BYTES)
    assert connection.told == []
    say(incoming, b"x")
    say(incoming, b"x")  # was on its way
    assert connection.told == ["pause"]
    assert await incoming.next() == b"x" * (MAX_HELD_BYTES + 2)
    assert connection.told == ["pause", "resume"]


async def test_an_answer_that_breaks_off_is_told_after_what_came_before(connection: Connection) -> None:
    incoming, taken = answer(connection), list[bytes]()
    reader = asyncio.ensure_future(incoming.next(lambda piece: not taken.append(piece)))
    await asyncio.sleep(0)
    incoming.put(b"one")
    incoming.lose()
    with pytest.raises(EngineRefused):
        await reader
    assert taken == [b"one"]
    with pytest.raises(EngineRefused):
        await incoming.whole()


async def test_what_the_taker_raises_ends_the_reading(connection: Connection) -> None:
    def take(_: bytes) -> bool:
        raise ClientGone

    incoming = answer(connection)
    reader = asyncio.ensure_future(incoming.next(take))
    await asyncio.sleep(0)
    say(incoming, b"one")
    say(incoming, b"two")
    with pytest.raises(ClientGone):
        await reader
    with pytest.raises(ClientGone):
        await incoming.next(take)
    assert incoming.close() is None and connection.told == ["close"]
