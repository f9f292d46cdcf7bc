"""Requests that wait: for a place at the engine, and over a recovery. On real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from dsv41_supervisor.gateway.admission import Lanes
from dsv41_supervisor.gateway.readiness import Readiness
from dsv41_supervisor.gateway.waiting import Lobby, Patience

from tests.unit.gateway.conftest import DONE, KEY, chunk_event

OTHER = "another-key-of-the-tests-987654"
LONG = "word " * 200  # 1000 bytes; short_tokens is 100 here

pytestmark = pytest.mark.asyncio


async def ask(fleet: Any, text: str = "hi", key: str = KEY, stream: bool = False) -> tuple[int, dict[str, str], bytes]:
    async with fleet.post(key=key, messages=[{"role": "user", "content": text}], stream=stream) as response:
        return response.status, dict(response.headers), await response.read()


def asked(fleet: Any, *args: Any, **more: Any) -> asyncio.Task[tuple[int, dict[str, str], bytes]]:
    return asyncio.create_task(ask(fleet, *args, **more))


def at_engine(fleet: Any) -> list[str]:
    return [body["messages"][0]["content"] for _, _, body in fleet.engine.seen]


async def until_waiting(fleet: Any, n: int) -> None:
    """As the metrics say it."""
    async with asyncio.timeout(10):
        while f"dsv41_gateway_waiting_requests {n}\n" not in await fleet.metrics():
            await asyncio.sleep(0.01)


async def test_a_short_prompt_does_not_wait_behind_long_ones(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=3, reserved=1, short_tokens=100))
    fleet.engine.behave = fleet.engine.hangs
    long = [asked(fleet, LONG + str(n), stream=bool(n % 2)) for n in range(4)]
    await until_waiting(fleet, 2)
    short = asked(fleet, "short")
    await fleet.until(lambda: at_engine(fleet).count("short") == 1)
    assert len(fleet.engine.seen) == 3
    fleet.engine.release.set()
    answers = await asyncio.gather(short, *long)
    assert [status for status, _, _ in answers] == [200] * 5
    waited = [headers for _, headers, _ in answers if "x-dsv41-queue-position" in headers]
    assert sorted(headers["x-dsv41-queue-position"] for headers in waited) == ["1", "2"]
    assert all(float(headers["x-dsv41-waited-s"]) >= 0 for headers in waited)
    assert "x-dsv41-waited-s" not in answers[0][1]


async def test_the_next_long_prompt_goes_when_the_one_before_begins_to_answer(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=8, reading_long=1, short_tokens=100))
    has_read = asyncio.Event()

    async def reads(request: Any, body: dict[str, Any]) -> Any:
        await has_read.wait()
        return await fleet.engine.stalls(request, body)  # one event, and no end

    fleet.engine.behave = reads
    first = asked(fleet, LONG + "1", stream=True)
    await fleet.until(lambda: len(fleet.engine.seen) == 1)
    second = asked(fleet, LONG + "2", stream=True)
    await until_waiting(fleet, 1)
    short = asked(fleet, "short", stream=True)
    await fleet.until(lambda: at_engine(fleet)[1:] == ["short"])
    assert "dsv41_gateway_reading_long_prompts 1\n" in await fleet.metrics()
    has_read.set()
    await fleet.until(lambda: at_engine(fleet)[2:] == [LONG + "2"])
    assert not first.done()
    fleet.engine.release.set()
    assert [status for status, _, _ in await asyncio.gather(first, second, short)] == [200] * 3


async def test_a_long_answer_in_one_piece_does_not_keep_the_next_long_prompt_until_its_end(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=8, reading_long=1, short_tokens=100))
    fleet.engine.behave = fleet.engine.hangs
    tasks = [asked(fleet, LONG + str(n)) for n in range(3)]  # 250 tokens each: read within 0.1 s
    await fleet.until(lambda: len(fleet.engine.seen) == 3, within_s=10)
    fleet.engine.release.set()
    assert [status for status, _, _ in await asyncio.gather(*tasks)] == [200] * 3


async def test_free_places_go_round_the_keys(start: Any) -> None:
    fleet = await start(key_lines=f"busy:{KEY}\nrare:{OTHER}\n", lanes=Lanes(running=1))
    fleet.engine.behave = one_at_a_time(fleet)
    tasks = [asked(fleet, "busy 0")]
    await fleet.until(lambda: len(fleet.engine.seen) == 1)
    for n in range(1, 5):
        tasks.append(asked(fleet, f"busy {n}"))
        await until_waiting(fleet, n)
    tasks.append(asked(fleet, "rare", key=OTHER))
    await until_waiting(fleet, 5)
    fleet.engine.release.set()
    await asyncio.gather(*tasks)
    assert at_engine(fleet) == ["busy 0", "rare", "busy 1", "busy 2", "busy 3", "busy 4"]


def one_at_a_time(fleet: Any) -> Any:
    inside = 0

    async def behave(request: Any, body: dict[str, Any]) -> Any:
        nonlocal inside
        inside += 1
        assert inside == 1, "two at once"
        try:
            return await fleet.engine.hangs(request, body)
        finally:
            inside -= 1

    return behave


async def test_a_client_that_leaves_while_it_waits_never_reaches_the_engine(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=1))
    fleet.engine.behave = fleet.engine.hangs
    first = asked(fleet, "first")
    await fleet.until(lambda: fleet.engine.seen)
    gone, last = asked(fleet, "gone"), asked(fleet, "last")
    await until_waiting(fleet, 2)
    gone.cancel()
    await until_waiting(fleet, 1)
    fleet.engine.release.set()
    assert (await first)[0] == (await last)[0] == 200
    assert at_engine(fleet) == ["first", "last"]
    assert 'dsv41_gateway_waits_total{end="gone"} 1\n' in await fleet.metrics()


async def test_a_client_that_leaves_at_the_engine_gives_its_place_to_the_next(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=1))
    fleet.engine.behave = fleet.engine.stalls
    first, second = asked(fleet, "first", stream=True), asked(fleet, "second", stream=True)
    await until_waiting(fleet, 1)
    await fleet.until(lambda: fleet.engine.seen)
    (first if at_engine(fleet) == ["first"] else second).cancel()
    await fleet.until(lambda: len(fleet.engine.seen) == 2)
    fleet.engine.release.set()
    assert [task.result()[0] for task in (await asyncio.wait({first, second}))[0] if not task.cancelled()] == [200]


async def test_a_full_line_is_503_with_the_reason_and_room_for_other_keys(start: Any) -> None:
    fleet = await start(key_lines=f"busy:{KEY}\nrare:{OTHER}\n", lanes=Lanes(running=1, waiting=2))
    fleet.engine.behave = fleet.engine.hangs
    running = asked(fleet)
    await fleet.until(lambda: fleet.engine.seen)
    waiting = [asked(fleet), asked(fleet)]
    await until_waiting(fleet, 2)
    async with fleet.post() as response:
        assert response.status == 503 and int(response.headers["Retry-After"]) > 0
        error = (await response.json())["error"]
    assert error["code"] == "queue_full" and error["type"] == "overloaded"
    assert error["message"].startswith("No more requests can wait: 2 requests wait already.")
    rare = asked(fleet, "rare", key=OTHER)
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    assert [task.result()[0] for task in done] == [503]
    fleet.engine.release.set()
    assert (await rare)[0] == (await running)[0] == 200
    assert sorted([(await task)[0] for task in waiting]) == [200, 503]


async def test_a_full_line_is_told_before_the_body_is_sent(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=1, waiting=1))
    fleet.engine.behave = fleet.engine.hangs
    tasks = [asked(fleet)]
    await fleet.until(lambda: fleet.engine.seen)
    tasks.append(asked(fleet))
    await until_waiting(fleet, 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.config.port)
    writer.write(fleet.head(1 << 20))
    raw = await asyncio.wait_for(reader.readuntil(b"}}"), 10)  # and not a byte of the body was sent
    assert raw.startswith(b"HTTP/1.1 503 ") and b'"queue_full"' in raw
    writer.close()
    fleet.engine.behave = None
    async with fleet.post("/tokenize", prompt="hi") as response:
        assert response.status == 200, "what needs no place is not sent away"
    fleet.engine.release.set()
    assert [status for status, _, _ in await asyncio.gather(*tasks)] == [200, 200]


@pytest.mark.parametrize(("path", "body", "places"), [
    ("/v1/chat/completions", {"n": 3}, 3), ("/v1/completions", {"prompt": ["a", "b"], "n": 2}, 4),
    ("/v1/completions", {"prompt": [1, 2, 3]}, 1), ("/v1/chat/completions", {"n": 100}, 8),
])  # fmt: skip
async def test_each_answer_that_a_request_asks_for_takes_a_place(
    start: Any, path: str, body: dict[str, Any], places: int
) -> None:
    fleet = await start(lanes=Lanes(running=8))
    fleet.engine.behave = fleet.engine.hangs
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read(fleet, path, body))
        await fleet.until(lambda: fleet.engine.seen)
        assert f'dsv41_gateway_lane_requests{{lane="short",at="engine"}} {places}\n' in await fleet.metrics()
        fleet.engine.release.set()


async def read(fleet: Any, path: str, body: dict[str, Any]) -> None:
    async with fleet.post(path, **body) as response:
        await response.read()


async def test_who_waits_too_long_is_told_so(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=1), patience=Patience(queue_s=0.05))
    fleet.engine.behave = fleet.engine.hangs
    running = asked(fleet)
    await fleet.until(lambda: fleet.engine.seen)
    status, _, raw = await ask(fleet)
    assert status == 503 and b'"queue_timeout"' in raw and b"within 0.05 s" in raw
    fleet.engine.release.set()
    assert (await running)[0] == 200 and (await ask(fleet))[0] == 200


async def test_the_line_is_told_when_the_fleet_is_lost(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=1))
    fleet.engine.behave = fleet.engine.hangs
    running = asked(fleet)
    await fleet.until(lambda: fleet.engine.seen)
    waiting = asked(fleet)
    await until_waiting(fleet, 1)
    fleet.supervisor.lose_rank()
    status, headers, raw = await waiting
    assert status == 503 and headers["Retry-After"] == "12" and b"rank 2 on spark3 was lost" in raw
    assert (await running)[0] == 502 and len(fleet.engine.seen) == 1


# --- signs of life

REQUESTS = {
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": "hi"}]}, b": keep-alive\n\n"),
    "/v1/completions": ({"prompt": "hi"}, b": keep-alive\n\n"),
    "/v1/responses": ({"input": "hi"}, b": keep-alive\n\n"),
    "/v1/messages": (
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
        b'event: ping\ndata: {"type": "ping"}\n\n',
    ),
}


def code_of(event: bytes) -> str:
    """Of the error event with which a stream ends, in any protocol."""
    assert event.endswith(b"\n\n")
    return str(json.loads(event[event.rindex(b"data: ") + 6 :])["error"]["code"])


async def test_a_stream_that_waits_in_the_line_shows_that_it_lives_and_is_served_then(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=1), keep_alive_s=0.05)
    fleet.engine.behave = fleet.engine.hangs
    running = asked(fleet)
    await fleet.until(lambda: fleet.engine.seen)
    async with fleet.post(stream=True) as response:
        assert response.status == 200 and response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["x-dsv41-queue-position"] == "1" and "x-dsv41-waited-s" not in response.headers
        assert response.headers["x-dsv41-max-tokens"] == "32768" and response.headers["x-request-id"]
        for _ in range(2):
            assert await asyncio.wait_for(response.content.readuntil(b"\n\n"), 5) == b": keep-alive\n\n"
        assert len(fleet.engine.seen) == 1
        fleet.engine.release.set()
        rest = await response.read()
    assert (await running)[0] == 200
    assert rest.replace(b": keep-alive\n\n", b"") == chunk_event("vierzig") + chunk_event("zwei") + DONE


@pytest.mark.parametrize("path", REQUESTS)
async def test_a_refusal_after_the_stream_has_begun_is_its_protocols_error_event(start: Any, path: str) -> None:
    fleet = await start(patience=Patience(hold_s=60), keep_alive_s=0.05)
    fleet.supervisor.lose_rank()
    await fleet.until_ready(False)
    body, sign = REQUESTS[path]
    async with fleet.post(path, stream=True, **body) as response:
        assert response.status == 200
        assert await asyncio.wait_for(response.content.readuntil(b"\n\n"), 5) == sign
        fleet.supervisor.say(ready=False, state="failed", reason="gave up after 5 recoveries")
        rest = (await response.read()).replace(sign, b"")
    assert rest.count(b"\n\n") == 1 and b"gave up after 5 recoveries" in rest and code_of(rest) == "fleet_not_ready"
    assert rest.startswith(b"data: " if "completions" in path else b"event: error\n")
    assert "dsv41_gateway_streams_cut_total 1\n" in await fleet.metrics() and fleet.engine.seen == []


async def test_a_stream_that_waits_too_long_says_so_in_its_last_event(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=1), patience=Patience(queue_s=1.5), keep_alive_s=0.05)
    fleet.engine.behave = fleet.engine.hangs
    running = asked(fleet)
    await fleet.until(lambda: fleet.engine.seen)
    status, _, raw = await ask(fleet, stream=True)
    assert status == 200 and code_of(raw) == "queue_timeout"
    fleet.engine.release.set()
    assert (await running)[0] == 200


async def test_a_stream_refused_before_it_has_begun_keeps_its_status(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=1), patience=Patience(queue_s=0.05), keep_alive_s=60)
    fleet.engine.behave = fleet.engine.hangs
    running = asked(fleet)
    await fleet.until(lambda: fleet.engine.seen)
    status, headers, raw = await ask(fleet, stream=True)
    assert status == 503 and headers["Retry-After"] and b'"queue_timeout"' in raw
    fleet.engine.release.set()
    assert (await running)[0] == 200


async def test_a_gateway_that_stops_ends_a_stream_that_waits_with_its_error(start: Any) -> None:
    fleet = await start(patience=Patience(hold_s=60), keep_alive_s=0.05)
    fleet.supervisor.lose_rank()
    await fleet.until_ready(False)
    async with fleet.post(stream=True) as response:
        await asyncio.wait_for(response.content.readuntil(b"\n\n"), 5)
        stopping = asyncio.create_task(fleet.gateway.aclose())
        rest = await asyncio.wait_for(response.read(), 10)
    await stopping
    assert code_of(rest) == "fleet_not_ready" and b"The gateway is stopping." in rest


async def test_a_client_that_leaves_after_a_sign_of_life_gives_its_place_back(start: Any) -> None:
    fleet = await start(patience=Patience(hold_s=60), keep_alive_s=0.05)
    fleet.supervisor.lose_rank()
    await fleet.until_ready(False)
    async with fleet.post(stream=True) as response:
        await asyncio.wait_for(response.content.readuntil(b"\n\n"), 5)
        await until_waiting(fleet, 1)
        response.close()
    await until_waiting(fleet, 0)
    fleet.supervisor.say(ready=True, state="serving", boot="boot-2", reason=None)
    assert (await ask(fleet, "stays"))[0] == 200 and at_engine(fleet) == ["stays"]
    assert 'dsv41_gateway_waits_total{end="gone"} 1\n' in await fleet.metrics()


# --- over a recovery


async def test_new_requests_are_held_over_a_recovery_where_the_operator_wants_that(start: Any) -> None:
    fleet = await start(patience=Patience(hold_s=60, hold_requests=2))
    fleet.supervisor.lose_rank()
    await fleet.until_ready(False)
    held = [asked(fleet, "whole"), asked(fleet, "streamed", stream=True)]
    await until_waiting(fleet, 2)
    status, headers, raw = await ask(fleet, "too many")
    assert status == 503 and headers["Retry-After"] == "12" and b"recovering" in raw
    assert fleet.engine.seen == []
    fleet.supervisor.say(ready=True, state="serving", boot="boot-2", reason=None)
    answers = await asyncio.gather(*held)
    assert [status for status, _, _ in answers] == [200, 200] and b"[DONE]" in answers[1][2]
    assert {headers["x-dsv41-boot"] for _, headers, _ in answers} == {"boot-2"}
    assert sorted(at_engine(fleet)) == ["streamed", "whole"]


async def test_requests_in_the_line_are_held_too_and_running_ones_are_not_sent_twice(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=1), patience=Patience(hold_s=60))
    fleet.engine.behave = fleet.engine.hangs
    running = asked(fleet, "running")
    await fleet.until(lambda: fleet.engine.seen)
    waiting = asked(fleet, "waiting")
    await until_waiting(fleet, 1)
    fleet.supervisor.lose_rank()
    assert (await running)[0] == 502
    fleet.engine.release.set()
    fleet.supervisor.say(ready=True, state="serving", boot="boot-2", reason=None)
    assert (await waiting)[0] == 200
    assert at_engine(fleet) == ["running", "waiting"]


async def test_a_held_client_that_leaves_is_dropped(start: Any) -> None:
    fleet = await start(patience=Patience(hold_s=60))
    fleet.supervisor.lose_rank()
    await fleet.until_ready(False)
    gone, stays = asked(fleet, "gone"), asked(fleet, "stays")
    await until_waiting(fleet, 2)
    gone.cancel()
    await until_waiting(fleet, 1)
    fleet.supervisor.say(ready=True, state="serving", boot="boot-2", reason=None)
    assert (await stays)[0] == 200 and at_engine(fleet) == ["stays"]


@pytest.mark.parametrize(
    "change",
    [
        {"state": "failed", "reason": "gave up after 5 recoveries"},
        {"state": "down", "reason": "the operator took it down"},
        {"state": "draining", "reason": "the operator drains the fleet"},
    ],
)  # fmt: skip
async def test_nobody_is_held_for_what_does_not_pass_by_itself(start: Any, change: dict[str, Any]) -> None:
    fleet = await start(patience=Patience(hold_s=60))
    fleet.supervisor.lose_rank()
    await fleet.until_ready(False)
    held = asked(fleet)
    await until_waiting(fleet, 1)
    fleet.supervisor.say(ready=False, **change)
    status, _, raw = await held
    assert status == 503 and change["reason"].encode() in raw
    status, _, raw = await ask(fleet)
    assert status == 503 and change["reason"].encode() in raw


async def test_nobody_is_held_for_longer_than_the_supervisor_says_it_takes(start: Any) -> None:
    fleet = await start(patience=Patience(hold_s=10))
    fleet.supervisor.lose_rank()  # 11.2 s to go
    await fleet.until_ready(False)
    status, headers, _ = await ask(fleet)
    assert status == 503 and headers["Retry-After"] == "12"


async def test_a_recovery_that_takes_longer_than_the_hold_is_a_503(start: Any) -> None:
    fleet = await start(patience=Patience(hold_s=0.1))
    fleet.supervisor.say(ready=False, state="recovering", boot=None, reason="rank 1 was lost", retry_after_s=0.1)
    await fleet.until_ready(False)
    status, headers, raw = await ask(fleet)
    assert status == 503 and headers["Retry-After"] == "1" and b"rank 1 was lost" in raw
    assert 'dsv41_gateway_waits_total{end="timeout"} 1\n' in await fleet.metrics()


async def test_a_gateway_that_stops_tells_those_who_wait(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=1), stop_grace_s=5.0)
    fleet.engine.behave = fleet.engine.hangs
    running = asked(fleet)
    await fleet.until(lambda: fleet.engine.seen)
    waiting = asked(fleet)
    await until_waiting(fleet, 1)
    stopping = asyncio.create_task(fleet.gateway.aclose())
    status, headers, raw = await waiting
    assert status == 503 and b"The gateway is stopping." in raw and headers["Retry-After"] == "10"
    fleet.engine.release.set()
    assert (await running)[0] == 200
    await stopping


async def test_a_request_that_need_not_wait_never_gives_up_its_turn_in_the_loop() -> None:
    """It costs no trip through the event loop, only a few counters."""
    lobby = Lobby(Lanes(running=8, reserved=1), Patience(), lambda: Readiness(True, None, state="serving"))
    for _ in range(100):
        with lobby.place("me") as place:
            coroutine = place.wait(100.0, 400)
            with pytest.raises(StopIteration) as done:
                coroutine.send(None)
            assert done.value.value.position == 0 and lobby.line.n_running == 1
    assert lobby.line.n_running == 0 and not lobby.waits.ended
