"""Limits of keys, as a client meets them: on real sockets, in front of the scripted engine."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from aiohttp import web
from dsv41_supervisor.gateway.admission import Lanes

from tests.unit.gateway.conftest import DONE, KEY, MODEL, bearer, chunk_event

OTHER = "another-key-of-the-tests-987654"

pytestmark = pytest.mark.asyncio


async def refusal(fleet: Any, status: int, key: str = KEY, **body: Any) -> tuple[dict[str, Any], Any]:
    async with fleet.post(key=key, **body) as response:
        assert response.status == status, await response.text()
        return (await response.json())["error"], response.headers


async def test_a_key_at_its_limit_of_requests_is_told_so_and_other_keys_are_not(start: Any) -> None:
    fleet = await start(key_lines=f"me:{KEY} requests=2\nyou:{OTHER}\n")
    fleet.engine.behave = fleet.engine.hangs
    running = [asyncio.create_task(refusal_free(fleet, stream)) for stream in (True, False)]
    await fleet.until(lambda: len(fleet.engine.seen) == 2)
    error, headers = await refusal(fleet, 429)
    assert error["code"] == "rate_limit_exceeded" and error["param"] == "requests"
    assert error["message"].startswith("The key me is at its limit requests=2. Try again in 2 s")
    assert headers["Retry-After"] == "2"
    fleet.engine.release.set()
    assert await refusal_free(fleet, False, OTHER) == 200
    assert await asyncio.gather(*running) == [200, 200]
    assert await refusal_free(fleet, False) == 200


async def test_a_limit_is_told_in_the_clients_own_protocol(start: Any) -> None:
    fleet = await start(key_lines=f"me:{KEY} requests=1\nyou:{OTHER} models=other\n")
    fleet.engine.behave = fleet.engine.hangs
    running = asyncio.create_task(refusal_free(fleet, False))
    await fleet.until(lambda: fleet.engine.seen)
    for key, status, kind in ((KEY, 429, "rate_limit_error"), (OTHER, 403, "permission_error")):
        async with fleet.post("/v1/messages", key=key, max_tokens=8) as response:
            assert response.status == status
            said = await response.json()
            assert said["type"] == "error" and said["error"]["type"] == kind
    fleet.engine.release.set()
    assert await running == 200


async def refusal_free(fleet: Any, stream: bool, key: str = KEY) -> int:
    async with fleet.post(key=key, stream=stream) as response:
        await response.read()
        return int(response.status)


async def test_a_client_that_left_gives_its_place_back(start: Any) -> None:
    fleet = await start(key_lines=f"me:{KEY} requests=1\n")
    fleet.engine.behave = fleet.engine.hangs
    for n in range(3):
        asked = asyncio.create_task(refusal_free(fleet, False))
        await fleet.until(lambda n=n: len(fleet.engine.seen) == n + 1)
        asked.cancel()
        await fleet.until(lambda n=n: fleet.engine.left == n + 1)
    fleet.engine.release.set()
    await until_status(fleet, 200)


async def until_status(fleet: Any, status: int) -> None:
    async with asyncio.timeout(5):
        while await refusal_free(fleet, False) != status:
            await asyncio.sleep(0.02)


async def test_a_refused_request_and_a_broken_one_take_no_place(start: Any) -> None:
    fleet = await start(key_lines=f"me:{KEY} requests=1\n")
    for _ in range(3):
        await refusal(fleet, 400, messages="no")
    fleet.supervisor.lose_rank()
    await fleet.until_ready(False)
    for _ in range(3):
        await refusal(fleet, 503)
    fleet.supervisor.say(ready=True, state="serving", boot="boot-2", reason=None)
    await fleet.until_ready()
    assert await refusal_free(fleet, False) == 200


async def test_tokens_a_minute_are_bounded_and_retry_after_says_until_when(start: Any) -> None:
    fleet = await start(key_lines=f"me:{KEY} tokens_per_minute=1000\n")
    text = "word " * 4000  # some 5000 tokens by its bytes: all that is left, and 4 minutes more
    assert (await ask(fleet, text)) == 200
    error, headers = await refusal(fleet, 429)
    assert error["param"] == "tokens_per_minute" and "tokens_per_minute=1000" in error["message"]
    assert 200 < int(headers["Retry-After"]) < 300
    # A limit that was raised holds at once.
    fleet.keys_file.write_text(f"me:{KEY} tokens_per_minute=900000\n")
    assert await refusal_free(fleet, False) == 200


async def ask(fleet: Any, text: str, stream: bool = False) -> int:
    async with fleet.post(messages=[{"role": "user", "content": text}], stream=stream) as response:
        await response.read()
        return int(response.status)


def with_usage(fleet: Any, prompt: int, completion: int) -> Any:
    """An engine that counts as SGLang does: in the answer, or in the last chunk that it was asked for."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    async def behave(request: Any, body: dict[str, Any]) -> Any:
        if not body.get("stream"):
            return web.json_response({"object": "chat.completion", "choices": [], "usage": usage})
        assert body["stream_options"]["include_usage"]
        last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        return await fleet.engine.streaming([chunk_event("a"), last, DONE])(request, body)

    return behave


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engines_own_count_is_charged_and_not_the_estimate(start: Any, stream: bool) -> None:
    fleet = await start(key_lines=f"me:{KEY} tokens_per_minute=10000\n")
    fleet.engine.behave = with_usage(fleet, 11, 7)
    for _ in range(3):  # each some 8000 by its bytes
        assert await ask(fleet, "x" * 32_000, stream=stream) == 200
    assert 'dsv41_gateway_key_tokens_total{key="me"} 54\n' in await fleet.metrics()
    fleet.engine.behave = with_usage(fleet, 4, 29_996)
    assert await ask(fleet, "hi", stream=stream) == 200
    error, headers = await refusal(fleet, 429)
    assert error["param"] == "tokens_per_minute" and 100 < int(headers["Retry-After"]) <= 122


async def test_a_client_that_leaves_before_the_count_pays_for_what_it_read(start: Any) -> None:
    fleet = await start(key_lines=f"me:{KEY} tokens_per_minute=400\n")

    async def long(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        out = await fleet.engine.open(request)
        await out.write(chunk_event("a") * 1000)
        await fleet.engine.release.wait()
        return out

    fleet.engine.behave = long
    async with fleet.post(stream=True) as response:
        read = b""
        while read.count(b"\n\n") < 1000:
            read += await response.content.readany()
    await fleet.until(lambda: fleet.engine.left == 1)
    fleet.engine.behave = None
    error, headers = await refusal(fleet, 429)
    assert error["param"] == "tokens_per_minute" and int(headers["Retry-After"]) > 60


async def test_what_got_no_answer_costs_no_tokens(start: Any) -> None:
    fleet = await start(key_lines=f"me:{KEY} tokens_per_minute=1000\n")
    fleet.engine.behave = fleet.engine.dies
    for _ in range(3):
        assert await ask(fleet, "x" * 32_000) == 502
    fleet.engine.behave = refuses
    for _ in range(3):
        assert await ask(fleet, "x" * 32_000) == 400
    fleet.supervisor.lose_rank()
    await fleet.until_ready(False)
    assert await ask(fleet, "x" * 32_000) == 503
    assert 'dsv41_gateway_key_tokens_total{key="me"} 0\n' in await fleet.metrics()


async def refuses(_: web.Request, __: dict[str, Any]) -> web.Response:
    return web.json_response({"object": "error", "message": "no", "code": 400}, status=400)


async def test_counting_tokens_takes_no_place_in_the_line(start: Any) -> None:
    fleet = await start(lanes=Lanes(running=1))
    fleet.engine.behave = fleet.engine.hangs
    running = asyncio.create_task(refusal_free(fleet, False))
    await fleet.until(lambda: fleet.engine.seen)
    fleet.engine.behave = lambda *_: answer_tokens()
    async with fleet.post("/tokenize", prompt="hi") as response:
        assert response.status == 200
    fleet.engine.release.set()
    assert await running == 200


async def answer_tokens() -> web.Response:
    return web.json_response({"tokens": [1], "count": 1})


async def test_a_key_for_other_models_is_refused_by_name(start: Any) -> None:
    fleet = await start(key_lines=f"me:{KEY} models=small,tiny\nyou:{OTHER} models=tiny,{MODEL}\n")
    error, _ = await refusal(fleet, 403)
    assert error["code"] == "model_not_allowed" and error["param"] == "model"
    assert error["message"] == f"The key me is for small, tiny; this fleet serves {MODEL}. Ask the operator."
    assert await refusal_free(fleet, False, OTHER) == 200
    for key, ids in ((KEY, []), (OTHER, [MODEL])):
        async with fleet.get("/v1/models", key) as response:
            assert [model["id"] for model in (await response.json())["data"]] == ids
        async with fleet.get(f"/v1/models/{MODEL}", key) as response:
            assert response.status == (200 if ids else 403)
            assert ids or (await response.json())["error"]["code"] == "model_not_allowed"


async def test_defaults_and_the_cap_of_a_key_hold_and_are_told(start: Any) -> None:
    fleet = await start(key_lines=f"me:{KEY} max_tokens=100 effort=low\nyou:{OTHER}\n")
    for body, tokens, effort in (
        ({}, "100", "50"), ({"max_tokens": 7}, "7", "50"), ({"max_tokens": 101}, "100", "50"),
        ({"reasoning_effort": "high"}, "100", "75"),
    ):  # fmt: skip
        async with fleet.post(**body) as response:
            assert response.headers["x-dsv41-max-tokens"] == tokens
            assert response.headers["x-dsv41-effort"] == effort
    async with fleet.post(key=OTHER) as response:
        assert response.headers["x-dsv41-max-tokens"] == "32768"
        assert response.headers["x-dsv41-thinking"] == "off"
    assert fleet.engine.seen[0][2]["max_completion_tokens"] == 100


async def test_no_log_holds_a_key_a_prompt_or_an_answer(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    fleet = await start(key_lines=f"me:{KEY} requests=1 models={MODEL}\n")
    secret = "the-secret-of-this-prompt"
    for body in ({}, {"stream": True}, {"tools": secret}, {"max_tokens": secret}, {"thinking": secret}):
        async with fleet.post(messages=[{"role": "user", "content": secret}], **body) as response:
            await response.read()
    fleet.engine.behave = fleet.engine.dies
    async with fleet.post(messages=[{"role": "user", "content": secret}], stream=True) as response:
        await response.read()
    async with fleet.http.post(
        fleet.url + "/v1/chat/completions", data=f'{{"x": "{secret}', headers=bearer(KEY)
    ) as response:
        await response.read()
    fleet.keys_file.write_text(f"me:{KEY} {OTHER}\n")
    async with fleet.post(key=OTHER, messages=[{"role": "user", "content": secret}]) as response:
        assert response.status == 401
    assert "line 1 (me)" in caplog.text  # the refused line was told
    # asyncio tells of a slow callback by its repr; nothing else may say anything of a request.
    for forbidden in (KEY, OTHER, secret, "vierzig"):
        assert forbidden not in caplog.text
