"""When the fleet does not serve: what clients are told, and how soon the gateway knows."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from dsv41_supervisor.gateway.readiness import DEFAULT_RETRY_AFTER_S, Readiness

GOOD = {
    "version": 17, "ready": True, "reason": None, "state": "serving", "boot": "b",
    "upstream": "http://127.0.0.1:30000/", "served_model_name": "m", "retry_after_s": 12.0, "detail": None,
}  # fmt: skip


@pytest.mark.asyncio
async def test_while_the_fleet_recovers_requests_get_503_with_retry_after_and_what_happens(
    start: Any,
) -> None:
    fleet = await start()
    fleet.supervisor.lose_rank()
    await fleet.until_ready(False)
    for stream in (False, True):
        async with fleet.post(stream=stream) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "12"
            error = (await response.json())["error"]
        assert error["code"] == error["type"] == "fleet_not_ready"
        assert error["message"] == (
            "The fleet is not ready (recovering): rank 2 on spark3 was lost (stopping the other ranks). "
            "Try again in 12 s."
        )
    # Claude Code waits 60 s, ten times, and gives up at once when it is told 90.
    fleet.supervisor.say(retry_after_s=299.5)
    for path, seconds in (("/v1/chat/completions", "300"), ("/v1/messages", "60")):
        told, message = "12", ""
        while told == "12":  # until the gateway has heard it
            async with asyncio.timeout(20), fleet.post(path, max_tokens=5) as response:
                told, message = response.headers["Retry-After"], await response.text()
        assert told == seconds and "Try again in 300 s." in message
    # What the fleet is for, and not whether it serves.
    async with fleet.get("/v1/models") as response:
        assert response.status == 200
    async with fleet.get("/ready") as response:
        assert response.status == 503
    assert fleet.engine.seen == []


@pytest.mark.asyncio
async def test_readiness_is_noticed_at_once_both_ways(start: Any) -> None:
    fleet = await start(peer_timeout_s=20.0)  # polls of 10 s: only a push can be this fast
    fleet.supervisor.lose_rank()
    assert await fleet.until_ready(False) < 5
    fleet.supervisor.say(ready=True, state="serving", boot="boot-2", reason=None)
    assert await fleet.until_ready(True) < 5
    async with fleet.post() as response:
        assert response.status == 200 and response.headers["x-dsv41-boot"] == "boot-2"


@pytest.mark.asyncio
async def test_a_gateway_started_before_the_fleet_says_so_and_serves_once_it_is_there(start: Any) -> None:
    fleet = await start(wait=False)
    fleet.supervisor.say(
        ready=False, state="starting", boot="boot-1", reason="rank 0 loads weights", upstream=None
    )
    await fleet.until_ready(False)
    async with fleet.post() as response:
        assert response.status == 503
    fleet.supervisor.say(ready=True, state="serving", upstream=f"http://127.0.0.1:{fleet.engine.port}")
    await fleet.until_ready()


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["gone", "hangs", "broken", "refuses"])
async def test_a_silent_supervisor_stops_new_requests_but_not_running_streams(start: Any, how: str) -> None:
    fleet = await start(peer_timeout_s=0.6)
    fleet.engine.behave = fleet.engine.stalls
    async with fleet.post(stream=True) as response:
        await response.content.readuntil(b"\n\n")
        if how == "gone":
            await fleet.supervisor.stop()
        elif how == "hangs":
            fleet.supervisor.hang = True
        else:
            fleet.supervisor.status = 500 if how == "broken" else 401
        fleet.supervisor.say()
        took_s = await fleet.until_ready(False)
        # Not sooner: one lost answer is not an outage. The last answer can be up to half of it old.
        assert 0.2 < took_s < 10
        async with fleet.post() as refused:
            assert refused.status == 503 and refused.headers["Retry-After"] == "5"
            message = (await refused.json())["error"]["message"]
        assert "the head's supervisor has been silent for 0.6 s" in message
        assert {"gone": "refused", "hangs": "no answer", "broken": "500", "refuses": "fleet key"}[
            how
        ] in message.lower()
        fleet.engine.release.set()
        assert await response.read() == b"data: [DONE]\n\n"
    if how == "gone":
        await fleet.supervisor.start()
    fleet.supervisor.hang, fleet.supervisor.status = False, 200
    await fleet.until_ready()


@pytest.mark.asyncio
async def test_a_supervisor_that_restarts_quickly_is_not_an_outage(start: Any) -> None:
    fleet = await start(peer_timeout_s=1.5)
    await fleet.supervisor.stop()
    fleet.supervisor.says |= {"version": 0}
    fleet.supervisor.polls = 0
    await fleet.supervisor.start()
    await fleet.until(lambda: fleet.supervisor.polls >= 2)
    async with fleet.post() as response:
        assert response.status == 200


@pytest.mark.asyncio
@pytest.mark.parametrize("behaviour", ["stalls", "hangs"])
@pytest.mark.parametrize(
    "change",
    [
        {"ready": False, "state": "recovering"},
        {"ready": False, "state": "starting", "boot": None},
        {"ready": True, "state": "serving", "boot": "boot-2"},
    ],
)  # fmt: skip
async def test_a_hung_engine_does_not_hold_its_clients(
    start: Any, behaviour: str, change: dict[str, Any]
) -> None:
    """A lost worker makes the head's engine hang, not die: only the supervisor knows."""
    fleet = await start()
    fleet.engine.behave = getattr(fleet.engine, behaviour)
    streamed, whole = (asyncio.create_task(answer(fleet, stream)) for stream in (True, False))
    await fleet.until(lambda: len(fleet.engine.seen) == 2)
    await asyncio.sleep(0)
    fleet.supervisor.say(reason="rank 2 on spark3 was lost", **change)
    status, raw = await asyncio.wait_for(streamed, 8)
    if behaviour == "stalls":
        assert status == 200 and b"erst" in raw and b"[DONE]" not in raw
        raw = raw.rstrip(b"\n").rpartition(b"\n\ndata: ")[2]
    else:
        assert status == 502
    assert json.loads(raw)["error"]["code"] == "engine_lost"
    status, raw = await asyncio.wait_for(whole, 8)
    assert status == 502 and json.loads(raw)["error"]["code"] == "engine_lost"
    await fleet.until(lambda: fleet.engine.left == 2, within_s=10)


async def answer(fleet: Any, stream: bool) -> tuple[int, bytes]:
    async with fleet.post(stream=stream) as response:
        return response.status, await response.read()


@pytest.mark.asyncio
async def test_a_drain_refuses_new_requests_and_lets_running_ones_finish(start: Any) -> None:
    fleet = await start()
    fleet.engine.behave = fleet.engine.stalls
    async with fleet.post(stream=True) as response:
        await response.content.readuntil(b"\n\n")
        fleet.supervisor.say(ready=False, state="draining", reason="the operator drains the fleet")
        await fleet.until_ready(False)
        fleet.engine.release.set()
        assert await response.read() == b"data: [DONE]\n\n"


@pytest.mark.asyncio
async def test_a_supervisor_that_adopts_its_ranks_after_a_restart_ends_no_stream(start: Any) -> None:
    fleet = await start()
    fleet.engine.behave = fleet.engine.stalls
    async with fleet.post(stream=True) as response:
        await response.content.readuntil(b"\n\n")
        fleet.supervisor.say(ready=False, state="down", reason="the fleet is down")
        await fleet.until_ready(False)
        fleet.supervisor.say(ready=False, state="starting", reason="looking whether the ranks still serve")
        fleet.supervisor.say(ready=True, state="serving", reason=None)
        await fleet.until_ready()
        fleet.engine.release.set()
        assert await response.read() == b"data: [DONE]\n\n"


@pytest.mark.asyncio
async def test_a_gateway_that_stops_ends_its_streams_with_an_error_event(start: Any) -> None:
    fleet = await start(stop_grace_s=0.2)
    fleet.engine.behave = fleet.engine.stalls
    async with fleet.post(stream=True) as response:
        await response.content.readuntil(b"\n\n")
        stopping = asyncio.create_task(fleet.gateway.aclose())
        rest = await asyncio.wait_for(response.read(), 3)
        assert b"The gateway is stopping." in rest and b"[DONE]" not in rest
        await asyncio.wait_for(stopping, 3)
    assert fleet.engine.left == 1


@pytest.mark.asyncio
async def test_a_client_that_does_not_read_its_farewell_is_dropped(start: Any) -> None:
    fleet = await start(farewell_s=0.2)
    block = b"data: " + b"x" * 65_000 + b"\n\n"
    fleet.engine.behave = fleet.engine.streaming([block] * 1000)
    body = b'{"stream": true, "messages": [{"role": "user", "content": "hi"}]}'
    _, writer = await asyncio.open_connection("127.0.0.1", fleet.config.port, limit=1024)
    writer.write(fleet.head(len(body)) + body)
    await fleet.until(lambda: fleet.engine.seen)
    fleet.supervisor.lose_rank()
    await fleet.until(lambda: fleet.engine.left == 1, within_s=2.0)

    async def running() -> str:
        async with fleet.get("/metrics") as response:
            return str(await response.text())

    async with asyncio.timeout(3):
        while "dsv41_gateway_running_requests 0\n" not in await running():
            await asyncio.sleep(0.02)
    writer.close()


def test_an_answer_of_the_supervisor_is_read_or_refused_whole() -> None:
    good = Readiness.from_json(GOOD)
    assert (
        good.ready and good.upstream == "http://127.0.0.1:30000" and good.sentence == "The fleet is serving."
    )
    for wrong in (
        [], {}, GOOD | {"ready": "yes"}, GOOD | {"version": None}, GOOD | {"upstream": None},
        GOOD | {"boot": None}, GOOD | {"upstream": "file:///etc/passwd"},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            Readiness.from_json(wrong)
    down = Readiness.from_json({"version": 1, "ready": False})
    assert down.sentence == (
        "The fleet is not ready (unknown): the supervisor gave no reason. Try again in 5 s."
    )


@pytest.mark.parametrize(
    ("state", "boot", "keeps"),
    [
        ("serving", "b", True), ("degraded", "b", True), ("draining", "b", True), ("stopping", "b", True),
        ("starting", "b", True), ("down", "b", True),
        ("serving", "c", False), ("recovering", "b", False), ("starting", "c", False), ("down", None, False),
        ("failed", "b", False),
    ],
)  # fmt: skip
def test_which_changes_end_running_requests(state: str, boot: str | None, keeps: bool) -> None:
    assert Readiness(False, "x", state=state, boot=boot).serves("b") is keeps


@pytest.mark.parametrize("said", [float("nan"), float("inf"), -1, 10**400, "12", None, [], 1e9])
def test_a_wait_that_no_client_can_use_is_our_own_guess(said: object) -> None:
    now = Readiness.from_json(GOOD | {"ready": False, "retry_after_s": said})
    assert now.retry_after_s == DEFAULT_RETRY_AFTER_S and "Try again in 5 s." in now.sentence
