"""Every route that reaches the engine, over real sockets: what is sent on, how it ends, what a failure looks like."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

pytestmark = pytest.mark.asyncio

KEY = "a-key-for-the-tests-0123456789"
HI = [{"role": "user", "content": "hi"}]
ROUTES = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 99999},
}
"""The routes that generate, each with a request."""

DONE = b"data: [DONE]\n\n"
CHAT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"erst"},"finish_reason":null}]}\n\n'
CHAT_END = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"length","matched_stop":null}]}\n\n'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":6,"completion_tokens":3}}\n\n'
TOO_LONG = (
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of "
    "32774 tokens: 6 tokens from the input messages and 32768 tokens for the completion."
)


def named(name: str, **said: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name} | said, separators=(',', ':'))}\n\n".encode()


def response_object(status: str, **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": status, "output": [], "error": None} | more


BEGIN = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": CHAT,
    "/v1/responses": named("response.created", response=response_object("in_progress"), sequence_number=0)
    + named("response.in_progress", response=response_object("in_progress"), sequence_number=1)
    + named("response.output_text.delta", delta="erst", sequence_number=2),
    "/v1/messages": named("message_start", message={"usage": {"input_tokens": 6, "output_tokens": 0}})
    + named("content_block_delta", index=0, delta={"type": "text_delta", "text": "erst"}),
}
END = {
    "/v1/chat/completions": CHAT_END + DONE,
    "/v1/completions": CHAT_END + DONE,
    "/v1/responses": named("response.completed", response=response_object("completed"), sequence_number=3),
    "/v1/messages": named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3})
    + named("message_stop"),
}
every_route = pytest.mark.parametrize("path", ROUTES)


def last_error(path: str, raw: bytes) -> dict[str, Any]:
    """The error in the last event of a stream, from where this protocol has it."""
    name, _, data = raw.rstrip(b"\n").rpartition(b"\n\n")[2].rpartition(b"data: ")
    assert name == (b"" if path in ("/v1/chat/completions", "/v1/completions") else b"event: error\n")
    error = json.loads(data)["error"]
    assert isinstance(error, dict)
    return error


# --- what is sent on


async def test_each_route_reaches_its_own_path_with_the_cap_and_says_what_holds(start: Any) -> None:
    fleet = await start()
    fields = {"/v1/responses": "max_output_tokens", "/v1/chat/completions": "max_completion_tokens"}
    for path, body in ROUTES.items():
        async with fleet.post(path, **body) as response:
            assert response.status == 200, path
            told = response.headers
        went_to, headers, sent = fleet.engine.seen[-1]
        assert went_to == path and sent["model"] == "deepseek-v4.1-flash"
        expected = 16 if path == "/v1/completions" else 32768
        assert told["x-dsv41-max-tokens"] == str(expected)
        assert sent[fields.get(path, "max_tokens")] == expected + (2 if path == "/v1/responses" else 0)
        # The engine's name for it is ours, so that it can be stopped and found in the engine's log.
        name = sent.get("rid") or sent.get("request_id") or headers["x-override-rid"]
        assert name.removeprefix("resp_") == told["x-request-id"]
        assert told.get("request-id") == (told["x-request-id"] if path == "/v1/messages" else None)


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize", "/v1/messages/count_tokens"])
async def test_counting_routes_pass_through_and_generate_nothing(start: Any, path: str) -> None:
    fleet = await start()

    async def counts(_: web.Request, body: dict[str, Any]) -> web.Response:
        return web.json_response({"tokens": [1, 2], "count": 2, "max_model_len": 4096})

    fleet.engine.behave = counts
    async with fleet.post(path, messages=HI) as response:
        assert response.status == 200 and (await response.json())["count"] == 2
        assert "x-dsv41-max-tokens" not in response.headers and response.headers["x-dsv41-thinking"] == "off"
    assert fleet.engine.seen[-1][0] == path and "max_tokens" not in fleet.engine.seen[-1][2]
    async with fleet.post(path, key=None, messages=HI) as response:
        assert response.status == 401
    async with fleet.get("/metrics") as response:
        assert "dsv41_gateway_answers_total{" not in await response.text()


async def test_a_query_of_the_client_does_not_reach_the_engine(start: Any) -> None:
    """Claude Code asks for /v1/messages?beta=true."""
    fleet = await start()
    async with fleet.post("/v1/messages?beta=true", max_tokens=5, messages=HI) as response:
        assert response.status == 200
    assert fleet.engine.seen[-1][0] == "/v1/messages"


# --- streams


@every_route
async def test_a_stream_of_every_protocol_is_byte_for_byte_the_engines(start: Any, path: str) -> None:
    fleet = await start()
    whole = BEGIN[path] + END[path]
    fleet.engine.behave = fleet.engine.streaming([whole[i : i + 37] for i in range(0, len(whole), 37)], gap_s=0.001)
    async with fleet.post(path, stream=True, **ROUTES[path]) as response:
        assert response.status == 200 and await response.read() == whole


@every_route
async def test_a_long_prefill_is_kept_alive_as_each_protocol_can(start: Any, path: str) -> None:
    fleet = await start(keep_alive_s=0.05)

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await fleet.engine.release.wait()
        return await fleet.engine.streaming([BEGIN[path], END[path]])(request, body)

    fleet.engine.behave = slow
    sign = b'event: ping\ndata: {"type": "ping"}\n\n' if path == "/v1/messages" else b": keep-alive\n\n"
    async with fleet.post(path, stream=True, **ROUTES[path]) as response:
        for _ in range(2):
            assert await asyncio.wait_for(response.content.readexactly(len(sign)), 5) == sign
        fleet.engine.release.set()
        assert (await response.read()).replace(sign, b"") == BEGIN[path] + END[path]


async def test_a_responses_stream_is_kept_alive_although_it_begins_before_its_prefill(start: Any) -> None:
    fleet = await start(keep_alive_s=0.05)
    preamble, _, rest = (BEGIN["/v1/responses"] + END["/v1/responses"]).partition(b"event: response.output_text")

    async def slow(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        out = await fleet.engine.open(request)
        await out.write(preamble)
        await fleet.engine.release.wait()
        await out.write(b"event: response.output_text" + rest)
        return out

    fleet.engine.behave = slow
    async with fleet.post("/v1/responses", stream=True, input="hi") as response:
        assert await asyncio.wait_for(response.content.readuntil(b"\n\n"), 5) == b": keep-alive\n\n"
        fleet.engine.release.set()
        raw = await response.read()
    assert raw.replace(b": keep-alive\n\n", b"") == preamble + b"event: response.output_text" + rest


@every_route
async def test_a_stream_whose_engine_dies_ends_with_its_protocols_error(start: Any, path: str) -> None:
    fleet = await start()

    async def dies(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        out = await fleet.engine.open(request)
        await out.write(BEGIN[path] + END[path][:-9])
        await asyncio.sleep(0.02)
        assert request.transport is not None
        request.transport.abort()
        return out

    fleet.engine.behave = dies
    async with fleet.post(path, stream=True, **ROUTES[path]) as response:
        assert response.status == 200
        raw = await response.read()
    assert raw.startswith(BEGIN[path]) and last_error(path, raw)["code"] == "engine_lost"
    if path == "/v1/responses":
        failed = json.loads(raw.split(b"\n\n")[3].partition(b"data: ")[2])
        assert failed["type"] == "response.failed" and failed["sequence_number"] == 3
        assert failed["response"]["id"] == "resp_1" and failed["response"]["status"] == "failed"
    async with fleet.get("/metrics") as response:
        text = await response.text()
    assert f'dsv41_gateway_answers_total{{route="{path}",finish="engine_lost"}} 1\n' in text


@every_route
async def test_a_stream_whose_rank_is_lost_ends_with_its_protocols_error(start: Any, path: str) -> None:
    fleet = await start()

    async def stalls(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        out = await fleet.engine.open(request)
        await out.write(BEGIN[path])
        await fleet.engine.release.wait()
        return out

    fleet.engine.behave = stalls
    async with fleet.post(path, stream=True, **ROUTES[path]) as response:
        assert await asyncio.wait_for(response.content.readexactly(len(BEGIN[path])), 5) == BEGIN[path]
        fleet.supervisor.lose_rank()
        raw = await asyncio.wait_for(response.read(), 5)
    error = last_error(path, raw)
    assert error["code"] == "engine_lost" and "rank 2 on spark3 was lost" in error["message"]


@every_route
@pytest.mark.parametrize("stream", [False, True])
async def test_the_engine_is_told_by_name_that_the_client_left(start: Any, path: str, stream: bool) -> None:
    """Closing the connection is not enough for an answer in one piece: SGLang looks at it every 4 s."""
    fleet = await start()
    fleet.engine.behave = fleet.engine.hangs
    async with aiohttp.ClientSession() as session:
        asked = session.post(
            fleet.url + path, json=ROUTES[path] | {"stream": stream}, headers={"Authorization": f"Bearer {KEY}"}
        )
        request = asyncio.ensure_future(asked)
        await fleet.until(lambda: fleet.engine.seen)
        request.cancel()
    await fleet.until(lambda: fleet.engine.left == 1 and fleet.engine.aborted, within_s=1.0)
    _, headers, sent = fleet.engine.seen[0]
    assert fleet.engine.aborted[0] == (sent.get("rid") or sent.get("request_id") or headers["x-override-rid"])
    async with fleet.get("/metrics") as response:
        assert f'{{route="{path}",finish="client_gone"}} 1\n' in await response.text()


async def test_an_answer_that_is_complete_is_not_aborted(start: Any) -> None:
    fleet = await start()
    for stream in (False, True):
        async with fleet.post(stream=stream) as response:
            await response.read()
    fleet.engine.behave = lambda *_: asyncio.sleep(0, web.json_response({"message": "no"}, status=400))
    async with fleet.post() as response:
        assert response.status == 400
    await fleet.gateway.aclose()  # waits for aborts under way
    assert fleet.engine.aborted == []


# --- use and end


async def test_usage_is_always_computed_and_never_a_surprise(start: Any) -> None:
    fleet = await start()
    fleet.engine.behave = fleet.engine.streaming([CHAT, CHAT_END + USAGE[:30], USAGE[30:] + DONE])
    for options, expected in (
        (None, CHAT + CHAT_END + DONE),
        ({"include_usage": False}, CHAT + CHAT_END + DONE),
        ({"include_usage": True}, CHAT + CHAT_END + USAGE + DONE),
    ):
        async with fleet.post(stream=True, stream_options=options) as response:
            assert await response.read() == expected
        assert fleet.engine.seen[-1][2]["stream_options"]["include_usage"] is True
    async with fleet.post(stream=True, stream_options={"include_usage": "yes"}) as response:
        assert response.status == 400
    async with fleet.get("/metrics") as response:
        text = await response.text()
    assert "dsv41_gateway_prompt_tokens_total 18\n" in text and "dsv41_gateway_completion_tokens_total 9\n" in text
    assert 'dsv41_gateway_answers_total{route="/v1/chat/completions",finish="length"} 3\n' in text


async def test_a_whole_answer_says_in_a_header_how_it_ended(start: Any) -> None:
    fleet = await start()
    stopped = {"finish_reason": "stop", "matched_stop": "repetition: exact repetition from output token 40, 1 x 64"}
    incomplete = {"reason": "max_output_tokens", "matched_stop": stopped["matched_stop"]}
    looped = {"type": "message", "stop_reason": "stop_sequence", "stop_sequence": stopped["matched_stop"]}
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/chat/completions", {"choices": [stopped], "usage": {"prompt_tokens": 6}}, "repetition; token=40"),
        ("/v1/completions", {"choices": [{"finish_reason": "length", "matched_stop": None}]}, "length"),
        ("/v1/responses", response_object("completed"), "stop"),
        ("/v1/responses", response_object("incomplete", incomplete_details=incomplete), "repetition; token=40"),
        ("/v1/messages", {"type": "message", "stop_reason": "tool_use", "usage": {"output_tokens": 1}}, "tool_calls"),
        ("/v1/messages", looped, "repetition; token=40"),
    ]
    for path, said, finish in cases:
        fleet.engine.behave = lambda *_, said=said: asyncio.sleep(0, web.json_response(said))
        async with fleet.post(path, **ROUTES[path]) as response:
            assert await response.json() == said and response.headers["x-dsv41-finish"] == finish


# --- refusals that SGLang wraps into a stream


def refused_late(path: str, message: str) -> bytes:
    """What SGLang 0.5.23 streams, with status 200, for a request it cannot serve."""
    if path == "/v1/responses":
        failed = response_object("failed", error={"code": "server_error", "message": message})
        return BEGIN[path].partition(b"event: response.output_text")[0] + named(
            "response.failed", response=failed, sequence_number=2
        )
    return (
        named("message_start", message={"usage": {"input_tokens": 0, "output_tokens": 0}})
        + named("error", error={"type": "invalid_request_error", "message": message})
        + named("message_stop")
    )


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_a_prompt_that_is_too_long_is_a_400_although_sglang_begins_a_stream(start: Any, path: str) -> None:
    fleet = await start()
    message = "The input (5006 tokens) is longer than the model's context length (4096 tokens)."
    raw = refused_late(path, message)
    fleet.engine.behave = fleet.engine.streaming([raw[:50], raw[50:]], gap_s=0.01)
    async with fleet.post(path, stream=True, **ROUTES[path]) as response:
        body = await response.json()
    assert response.status == 400 and body["error"]["code"] == "context_length_exceeded"
    # Claude Code shortens its history when it reads these words.
    prefix = "prompt is too long: " if path == "/v1/messages" else ""
    assert body["error"]["message"] == prefix + message


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_a_limit_of_ours_is_made_to_fit_although_sglang_begins_a_stream(start: Any, path: str) -> None:
    fleet = await start()

    async def engine(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        fits = body.get("max_tokens", body.get("max_output_tokens")) < 5000
        return await fleet.engine.streaming([BEGIN[path] + END[path] if fits else refused_late(path, TOO_LONG)])(
            request, body
        )

    fleet.engine.behave = engine
    async with fleet.post(path, stream=True, **ROUTES[path]) as response:
        assert response.status == 200 and await response.read() == BEGIN[path] + END[path]
        assert response.headers["x-dsv41-max-tokens"] == "4090"
    sent = fleet.engine.seen[-1][2]
    assert sent.get("max_tokens") == 4090 or sent.get("max_output_tokens") == 4092
    # The client's own number is the client's own business.
    own = {"max_tokens": 6000} if path == "/v1/messages" else {"max_output_tokens": 6000}
    async with fleet.post(path, stream=True, **(ROUTES[path] | own)) as response:
        assert response.status == 400 and (await response.json())["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_nothing_of_the_stream_that_did_not_fit_is_left_in_the_one_that_does(
    start: Any, path: str, is_lost: bool
) -> None:
    """Neither half an event, nor that its last one has come."""
    fleet = await start()

    async def engine(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        fits = body.get("max_tokens", body.get("max_output_tokens")) < 5000
        late = refused_late(path, TOO_LONG)
        said = [b"" if is_lost else BEGIN[path] + END[path]] if fits else [late if is_lost else late + b"event: ha"]
        return await fleet.engine.streaming(said)(request, body)

    fleet.engine.behave = engine
    async with fleet.post(path, stream=True, **ROUTES[path]) as response:
        raw = await response.read()
    assert len(fleet.engine.seen) == 2
    if is_lost:
        assert response.status == 502 and b"engine_lost" in raw
    else:
        assert response.status == 200 and raw == BEGIN[path] + END[path]


async def test_another_failure_of_a_response_stays_the_engines_own_events(start: Any) -> None:
    fleet = await start()
    raw = refused_late("/v1/responses", "Generation aborted")
    fleet.engine.behave = fleet.engine.streaming([raw])
    async with fleet.post("/v1/responses", stream=True, input="hi") as response:
        assert response.status == 200 and await response.read() == raw


async def test_a_message_that_fails_before_it_began_has_the_status_of_its_error(start: Any) -> None:
    fleet = await start()
    for kind, status in (("api_error", 500), ("overloaded_error", 503), ("invalid_request_error", 400)):
        raw = named("message_start", message={}) + named("error", error={"type": kind, "message": "x"})
        fleet.engine.behave = fleet.engine.streaming([raw + named("message_stop")])
        async with fleet.post("/v1/messages", stream=True, max_tokens=5) as response:
            assert response.status == status and (await response.json())["error"]["type"] == kind


# --- errors in the client's protocol


async def test_every_error_of_a_messages_route_is_anthropics(start: Any) -> None:
    fleet = await start(max_body_bytes=10_000)

    async def expect(status: int, kind: str, asked: Any) -> None:
        async with asked as response:
            body = await response.json()
            assert response.status == status
        assert set(body) == {"type", "error"} and body["type"] == "error"
        assert body["error"]["type"] == kind and body["error"]["message"]

    await expect(401, "authentication_error", fleet.post("/v1/messages", key=None, max_tokens=5))
    await expect(400, "invalid_request_error", fleet.post("/v1/messages", messages=[], max_tokens=5))
    await expect(404, "not_found_error", fleet.get("/v1/messages/batches"))
    await expect(405, "invalid_request_error", fleet.get("/v1/messages"))
    long = [{"role": "user", "content": "x" * 20_000}]
    await expect(413, "request_too_large", fleet.post("/v1/messages/count_tokens", messages=long))
    fleet.engine.behave = lambda *_: asyncio.sleep(
        0, web.json_response({"type": "error", "error": {"type": "BadRequestError", "message": "no"}}, status=400)
    )
    await expect(400, "invalid_request_error", fleet.post("/v1/messages", max_tokens=5))
    fleet.supervisor.lose_rank()
    await fleet.until_ready(False)
    await expect(503, "overloaded_error", fleet.post("/v1/messages", max_tokens=5))
    async with fleet.post("/v1/responses", input="hi") as response:
        assert response.status == 503 and set((await response.json())["error"]) == {"message", "type", "param", "code"}


async def test_anthropics_key_header_is_a_key(start: Any) -> None:
    fleet = await start()
    body = {"messages": HI, "max_tokens": 5}
    async with fleet.http.post(fleet.url + "/v1/messages", json=body, headers={"x-api-key": KEY}) as response:
        assert response.status == 200
