"""Streams: the engine's bytes unchanged, an end that is never silent, and nobody holding anybody."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import aiohttp
import pytest
from aiohttp import web

pytestmark = pytest.mark.asyncio

DONE = b"data: [DONE]\n\n"
KEY = "a-key-for-the-tests-0123456789"


def event(text: str) -> bytes:
    return (
        b"data: "
        + json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False).encode()
        + b"\n\n"
    )


def error_of(raw: bytes) -> dict[str, Any]:
    """The error in the last event of a stream."""
    assert raw.endswith(b"\n\n") and b"[DONE]" not in raw
    last = raw.rstrip(b"\n").rpartition(b"\n\n")[2]
    assert last.startswith(b"data: ")
    error = json.loads(last[6:])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_a_stream_is_byte_for_byte_what_the_engine_sent(start: Any) -> None:
    fleet = await start()
    chunks = [
        event("Grüße 世界"), b": a comment of the engine\n\n", event("one") + event("two"),
        event("split")[:9], event("split")[9:],
        b"data: " + b"x" * 300_000 + b"\n", b"\n", b"event: odd\r\ndata: y\r\n\r\n", DONE,
    ]  # fmt: skip
    fleet.engine.behave = fleet.engine.streaming(chunks, gap_s=0.005)
    async with fleet.post(stream=True) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert (
            response.headers["x-dsv41-max-tokens"] == "32768"
            and response.headers["X-Accel-Buffering"] == "no"
        )
        assert "X-Secret" not in response.headers
        assert await response.read() == b"".join(chunks)


async def test_an_event_reaches_the_client_before_the_next_one_exists(start: Any) -> None:
    fleet = await start()
    fleet.engine.behave = fleet.engine.stalls
    async with fleet.post(stream=True) as response:
        assert b"erst" in await asyncio.wait_for(response.content.readuntil(b"\n\n"), 2)
        fleet.engine.release.set()
        assert await response.read() == DONE


async def test_http_1_0_clients_get_the_same_bytes(start: Any) -> None:
    fleet = await start()
    body = b'{"stream": true, "messages": [{"role": "user", "content": "hi"}]}'
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.config.port)
    writer.write(fleet.head(len(body), version="1.0") + body)
    raw = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert raw.partition(b"\r\n\r\n")[2].endswith(DONE) and b"chunked" not in raw


async def test_a_silent_stream_is_kept_alive_between_events(start: Any) -> None:
    fleet = await start(keep_alive_s=0.05)
    fleet.engine.behave = fleet.engine.stalls
    async with fleet.post(stream=True) as response:
        first = await response.content.readuntil(b"\n\n")
        for _ in range(3):
            assert await asyncio.wait_for(response.content.readuntil(b"\n\n"), 2) == b": keep-alive\n\n"
        fleet.engine.release.set()
        rest = await response.read()
    assert b"erst" in first and rest.replace(b": keep-alive\n\n", b"") == DONE


async def test_a_keep_alive_never_lands_inside_an_event(start: Any) -> None:
    fleet = await start(keep_alive_s=0.03)
    whole = event("a long event, sent in two halves")
    fleet.engine.behave = fleet.engine.streaming([whole[:20], whole[20:], DONE], gap_s=0.15)
    async with fleet.post(stream=True) as response:
        raw = await response.read()
    assert raw.replace(b": keep-alive\n\n", b"") == whole + DONE
    assert whole in raw and b": keep-alive\n\n" in raw


async def test_a_long_prefill_is_kept_alive_before_the_engines_first_byte(start: Any) -> None:
    fleet = await start(keep_alive_s=0.05)
    fleet.engine.behave = fleet.engine.hangs
    async with fleet.post(stream=True) as response:
        assert response.status == 200 and response.headers["x-dsv41-boot"] == "boot-1"
        for _ in range(2):
            assert await asyncio.wait_for(response.content.readuntil(b"\n\n"), 2) == b": keep-alive\n\n"
        fleet.engine.release.set()
        assert (await response.read()).endswith(DONE)


async def test_an_engine_that_refuses_after_a_long_prefill_ends_the_stream_with_its_error(start: Any) -> None:
    fleet = await start(keep_alive_s=0.05)

    async def late(_: web.Request, __: dict[str, Any]) -> web.Response:
        await fleet.engine.release.wait()
        return web.json_response({"object": "error", "message": "out of memory", "code": 500}, status=500)

    fleet.engine.behave = late
    async with fleet.post(stream=True) as response:
        await asyncio.wait_for(response.content.readuntil(b"\n\n"), 2)
        fleet.engine.release.set()
        assert error_of(await response.read())["message"] == "out of memory"


async def test_a_stream_whose_engine_dies_ends_with_an_error_event(start: Any) -> None:
    fleet = await start()
    fleet.engine.behave = fleet.engine.dies
    async with fleet.post(stream=True) as response:
        raw = await response.read()
    error = error_of(raw)
    assert error["code"] == error["type"] == "engine_lost"
    # The event that was cut in half never reached the client; the one before did.
    assert b"erst" in raw and raw.count(b"\n\n") == raw.count(b"data: ") == 2


async def test_a_stream_whose_engine_dies_behind_its_last_event_is_whole(start: Any) -> None:
    """Only the end of its HTTP is missing: nobody is told of a lost engine, and nobody of its abort."""
    fleet = await start()

    async def dies_late(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        out = await fleet.engine.open(request)
        await out.write(event("erst"))
        await out.write(DONE)
        await fleet.engine.release.wait()
        assert request.transport is not None
        request.transport.abort()
        return out

    fleet.engine.behave = dies_late
    async with fleet.post(stream=True) as response:
        assert await response.content.readexactly(len(event("erst") + DONE)) == event("erst") + DONE
        fleet.engine.release.set()
        assert await response.read() == b""
    assert "dsv41_gateway_streams_cut_total 0\n" in await fleet.metrics()
    await fleet.gateway.aclose()  # waits for aborts under way
    assert fleet.engine.aborted == []


async def test_a_client_that_leaves_at_the_last_event_needs_no_abort(start: Any) -> None:
    """Many do: what follows is no event."""
    fleet = await start()

    async def lingers(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        out = await fleet.engine.open(request)
        await out.write(event("erst") + DONE)
        await fleet.engine.release.wait()
        return out

    fleet.engine.behave = lingers
    async with fleet.post(stream=True) as response:
        await response.content.readuntil(DONE)
        response.close()
    await fleet.until(lambda: fleet.engine.left == 1)
    await fleet.gateway.aclose()
    assert fleet.engine.aborted == []


async def test_a_stream_that_ends_before_it_began_is_a_502(start: Any) -> None:
    fleet = await start()
    fleet.engine.behave = fleet.engine.streaming([b""])
    async with fleet.post(stream=True) as response:
        assert response.status == 502 and "Retry-After" in response.headers
        assert (await response.json())["error"]["code"] == "engine_lost"


@pytest.mark.parametrize("lie", [event("half"), event("half") + b'data: {"x'])
async def test_a_stream_that_ends_politely_without_done_is_an_error_all_the_same(
    start: Any, lie: bytes
) -> None:
    fleet = await start()
    fleet.engine.behave = fleet.engine.streaming([lie])
    async with fleet.post(stream=True) as response:
        assert error_of(await response.read())["code"] == "engine_lost"


async def test_a_stream_in_broken_chunked_encoding_is_an_error(start: Any) -> None:
    fleet = await start(keep_alive_s=0.1)

    async def garbage(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        out = await fleet.engine.open(request)
        await out.write(event("erst"))
        await asyncio.sleep(0.02)
        assert request.transport is not None
        request.transport.write(b"this is no chunk size\r\n")  # type: ignore[attr-defined]
        await asyncio.sleep(5)
        return out

    fleet.engine.behave = garbage
    async with asyncio.timeout(3), fleet.post(stream=True) as response:
        assert error_of(await response.read())["code"] == "engine_lost"


async def test_an_answer_in_one_piece_that_is_cut_is_a_502(start: Any) -> None:
    fleet = await start()
    fleet.engine.behave = fleet.engine.dies
    async with fleet.post() as response:
        assert response.status == 502 and "Retry-After" in response.headers
        assert (await response.json())["error"]["code"] == "engine_lost"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_is_not_there_is_a_503_before_the_supervisor_knows(
    start: Any, stream: bool
) -> None:
    fleet = await start()
    await fleet.engine.stop()
    async with fleet.post(stream=stream) as response:
        assert response.status == 503 and response.headers["Retry-After"] == "2"
        assert (await response.json())["error"]["code"] == "fleet_not_ready"


@pytest.mark.parametrize("behaviour", ["stalls", "hangs"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_closes_the_engines_side_within_a_second(
    start: Any, behaviour: str, stream: bool
) -> None:
    fleet = await start()
    fleet.engine.behave = getattr(fleet.engine, behaviour)
    async with aiohttp.ClientSession() as session:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream}
        request = asyncio.create_task(
            session.post(
                fleet.url + "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {KEY}"}
            )
        )
        await fleet.until(lambda: fleet.engine.seen)
        if behaviour == "stalls" and stream:
            await asyncio.wait_for(request, 2)
        assert fleet.engine.left == 0
        request.cancel()
    await fleet.until(lambda: fleet.engine.left == 1, within_s=1.0)
    async with fleet.get("/metrics") as response:
        text = await response.text()
    assert "dsv41_gateway_running_requests 0\n" in text and "dsv41_gateway_clients_gone_total 1\n" in text


async def test_a_slow_reader_slows_its_own_engine_request_and_nobody_else(start: Any) -> None:
    """Back-pressure: what the client does not take stays in the engine, not in the gateway's memory."""
    fleet = await start()
    sent = 0
    block = b"data: " + b"x" * 65_000 + b"\n\n"

    async def flood(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal sent
        if not body.get("flood"):
            return await fleet.engine.answer(request, body)
        out = await fleet.engine.open(request)
        for _ in range(1000):
            await out.write(block)
            sent += len(block)
        await out.write(DONE)
        return out

    fleet.engine.behave = flood
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, ("127.0.0.1", fleet.config.port))
    body = b'{"stream": true, "flood": 1, "messages": [{"role": "user", "content": "hi"}]}'
    await loop.sock_sendall(raw, fleet.head(len(body)) + body)
    # It stops growing: two looks 0.3 s apart see the same.
    seen = -1
    async with asyncio.timeout(10):
        while sent != seen or sent == 0:
            seen = sent
            await asyncio.sleep(0.3)
    assert sent < 16 << 20, "the engine's 65 MB must not have gone into buffers"
    began = time.monotonic()
    async with fleet.post(stream=True) as response:
        assert (await response.read()).endswith(DONE)
    assert time.monotonic() - began < 10
    # It is still a whole stream for whoever takes it.
    taken = 0
    async with asyncio.timeout(10):
        while taken < 65_000 * 1000:
            taken += len(await loop.sock_recv(raw, 1 << 20))
    raw.close()


async def test_many_streams_run_side_by_side(start: Any) -> None:
    fleet = await start()
    fleet.engine.behave = fleet.engine.streaming([*(event(str(i)) for i in range(20)), DONE], gap_s=0.01)

    async def one() -> bytes:
        async with fleet.post(stream=True) as response:
            return bytes(await response.read())

    began = time.monotonic()
    answers = await asyncio.gather(*(one() for _ in range(30)))
    assert len(set(answers)) == 1 and answers[0].endswith(DONE)
    assert time.monotonic() - began < 4.0
