"""The surface: who gets in, what is there, and what a wrong request is told."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from aiohttp import web
from dsv41_supervisor.gateway.routes import ROUTES

from tests.unit.gateway.conftest import KEY, bearer

pytestmark = pytest.mark.asyncio

ADMIN_ROUTES = [
    "/generate", "/flush_cache", "/abort_request", "/pause_generation", "/continue_generation",
    "/start_profile", "/server_info", "/model_info", "/get_model_info", "/v1/loads", "/invocations",
    "/update_weights_from_disk", "/health_generate", "/v1/embeddings", "/api/chat",
    "/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/v1/messages/batches",
    "/detokenize", "/v1/detokenize", "/", "/docs", "/v1//models", "/v1/chat/completions/", "/V1/models",
    "/v1/models/../../flush_cache", "/%2e%2e/flush_cache",
]  # fmt: skip


VALIDATION = (
    "2 validation errors:\n"
    "  {'type': 'list', 'loc': ('body', 'tools'), 'msg': 'Input should be a valid list', 'input': 'SECRET'}\n"
    "  {'type': 'odd', 'loc': ('body', 'n'), 'msg': \"Don't\", 'input': 'SECRET'}\n\n"
    '  File "/opt/engine/http_server.py", line 7, in chat\n    POST /v1/chat/completions [{...}]'
)
"""How SGLang 0.5.23 words a body that its models refuse."""


def is_openai_error(body: dict[str, Any]) -> bool:
    return set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}


async def test_a_chat_answer_comes_back_whole_with_what_held_for_it(start: Any) -> None:
    fleet = await start()
    async with fleet.post(reasoning_effort="low", max_tokens=99999, seed=1) as response:
        assert response.status == 200
        assert (await response.json())["choices"][0]["message"]["content"] == "42"
        told = response.headers
    assert told["x-dsv41-thinking"] == "on" and told["x-dsv41-effort"] == "50"
    assert told["x-dsv41-max-tokens"] == "32768" and told["x-dsv41-max-tokens-source"] == "clamped"
    assert told["x-dsv41-boot"] == "boot-1" and len(told["x-request-id"]) == 32
    assert told["Server"] == "dsv41"
    path, headers, body = fleet.engine.seen[-1]
    assert path == "/v1/chat/completions"
    assert body["max_completion_tokens"] == 32768 and body["seed"] == 1
    assert body["chat_template_kwargs"] == {"thinking": True, "enable_thinking": True, "reasoning_effort": 50}
    # Nothing of the client's headers reaches the engine: SGLang takes overrides from some.
    assert {name.lower() for name in headers} <= {
        "host", "accept", "accept-encoding", "content-type", "content-length",
    }  # fmt: skip


async def test_text_of_any_script_arrives_unchanged(start: Any) -> None:
    fleet = await start()
    text = 'Grüße, 世界 🎉 \u2028 \x00 "quoted" \\ back'
    async with fleet.post(messages=[{"role": "user", "content": text}]) as response:
        assert response.status == 200
    assert fleet.engine.seen[-1][2]["messages"][0]["content"] == text


async def test_completions_are_passed_on_with_their_own_rules(start: Any) -> None:
    fleet = await start()
    async with fleet.post("/v1/completions", prompt="1", temperature=0) as response:
        assert response.status == 200
        assert response.headers["x-dsv41-max-tokens"] == "16"
    path, _, body = fleet.engine.seen[-1]
    assert path == "/v1/completions" and body["max_tokens"] == 16


async def test_models_are_listed_also_while_the_fleet_is_down(start: Any) -> None:
    fleet = await start()
    fleet.supervisor.lose_rank()
    await fleet.until_ready(False)
    async with fleet.get("/v1/models") as response:
        listed = await response.json()
    assert [model["id"] for model in listed["data"]] == ["deepseek-v4.1-flash"]
    async with fleet.get("/v1/models/deepseek-v4.1-flash") as response:
        assert (await response.json()) == listed["data"][0]
    async with fleet.get("/v1/models/gpt-4o") as response:
        assert (
            response.status == 404
            and "serves deepseek-v4.1-flash" in (await response.json())["error"]["message"]
        )


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/chat/completions", "/v1/completions", "/metrics", "/openapi.json"]
)
async def test_nothing_but_health_is_answered_without_a_valid_key(start: Any, path: str) -> None:
    fleet = await start()
    method = "POST" if path.endswith("completions") else "GET"
    for headers in (
        {},
        {"Authorization": "Bearer wrong-key-0123456789"},
        {"Authorization": "Basic bWU6"},
        {"X-Api-Key": "nothing"},
        {"Authorization": "Bearer " + "ü" * 20},
    ):
        async with fleet.http.request(method, fleet.url + path, headers=headers, data=b"{}") as response:
            assert response.status == 401 and is_openai_error(await response.json())
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert response.headers["x-should-retry"] == "false", "Claude Code would ask for minutes"
    assert fleet.engine.seen == []


async def test_a_key_added_or_removed_holds_at_once(start: Any) -> None:
    fleet = await start()
    fleet.keys_file.write_text("new:another-key-0123456789\n")
    async with fleet.get("/v1/models") as response:
        assert response.status == 401
    async with fleet.get("/v1/models", key="another-key-0123456789") as response:
        assert response.status == 200


async def test_without_keys_anyone_on_loopback_is_served(start: Any) -> None:
    fleet = await start(keys_file=None)
    async with fleet.post(key=None) as response:
        assert response.status == 200


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_every_other_route_is_a_404_that_never_reaches_the_engine(start: Any, method: str) -> None:
    fleet = await start()
    for path in ADMIN_ROUTES:
        async with fleet.http.request(
            method, fleet.url + path, headers={"Authorization": "Bearer a-key-for-the-tests-0123456789"}
        ) as response:
            assert response.status == 404, path
            body = await response.json()
            assert is_openai_error(body) or path.startswith("/v1/messages")
            assert body["error"]["code"] == "unknown_url"
    assert fleet.engine.seen == []


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"), ("/v1/v1/messages", "/v1/messages"),
        ("/responses", "/v1/responses"),
    ],
)
async def test_a_base_url_with_a_wrong_number_of_v1_is_told_what_is_meant(start: Any, path: str, meant: str) -> None:
    fleet = await start()
    async with fleet.post(path) as response:
        assert response.status == 404
        assert f"There is no POST {path} here: it is {meant}." in (await response.json())["error"]["message"]


async def test_a_wrong_method_is_a_405_that_names_the_right_one(start: Any) -> None:
    fleet = await start()
    async with fleet.get("/v1/chat/completions") as response:
        body = await response.json()
        assert response.status == 405 and is_openai_error(body)
        assert body["error"]["message"] == "/v1/chat/completions takes POST."


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "The body is empty"),
        (b'{"messages": [}', "The body is not JSON: Expecting value at line 1 column 15"),
        (b"[1]", "The body is not a JSON object"),
        (b"\xff\xfe{}", "The body is not UTF-8 (byte 0)"),
        (b'{"temperature": NaN}', "The body is not JSON that can be read"),
        (b"[" * 100_000, "The body is not JSON that can be read"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "The body is not JSON that can be read"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "half of a surrogate pair"),
        (b'{"messages": [{"role": "user"}], "metadata": 1e999}', "a number is too large"),
        (b"{}", "messages is missing or empty"),
        (b'{"messages": [{"role": "user"}], "max_tokens": "9"}', "max_tokens is not a whole number"),
    ],
)
async def test_a_body_that_cannot_be_served_is_a_clear_400(start: Any, raw: bytes, says: str) -> None:
    fleet = await start()
    headers = {"Authorization": "Bearer a-key-for-the-tests-0123456789", "Content-Type": "application/json"}
    async with fleet.http.post(fleet.url + "/v1/chat/completions", data=raw, headers=headers) as response:
        body = await response.json()
    assert response.status == 400 and is_openai_error(body)
    assert says in body["error"]["message"]
    assert fleet.engine.seen == []


async def test_the_last_of_two_equal_names_holds_and_the_engine_sees_only_that_one(start: Any) -> None:
    fleet = await start()
    raw = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "max_tokens": 99999}'
    headers = {"Authorization": "Bearer a-key-for-the-tests-0123456789", "Content-Type": "application/json"}
    async with fleet.http.post(fleet.url + "/v1/chat/completions", data=raw, headers=headers) as response:
        assert response.status == 200
    assert fleet.engine.seen[-1][2]["max_tokens"] == 32768


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "x-mine"])
async def test_an_encoding_that_is_not_read_here_is_a_415(start: Any, encoding: str) -> None:
    fleet = await start()
    headers = bearer(KEY) | {"Content-Type": "application/json", "Content-Encoding": encoding}
    async with fleet.http.post(fleet.url + "/v1/chat/completions", data=b"{}", headers=headers) as response:
        assert response.status == 415
        assert (await response.json())["error"]["code"] == "unsupported_encoding"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_a_body_that_is_not_declared_as_json_is_a_415(start: Any, content_type: str | None) -> None:
    fleet = await start()
    headers = {"Authorization": "Bearer a-key-for-the-tests-0123456789"}
    if content_type:
        headers["Content-Type"] = content_type
    skip = ["Content-Type"]
    async with fleet.http.post(
        fleet.url + "/v1/chat/completions", data=b"{}", headers=headers, skip_auto_headers=skip
    ) as response:
        assert response.status == 415
        assert (
            "send the header `Content-Type: application/json`" in (await response.json())["error"]["message"]
        )


async def test_a_body_over_the_limit_is_a_413_declared_or_chunked_or_compressed(start: Any) -> None:
    fleet = await start(max_body_bytes=10_000)
    headers = {"Authorization": "Bearer a-key-for-the-tests-0123456789", "Content-Type": "application/json"}
    url = fleet.url + "/v1/chat/completions"

    async def chunks() -> Any:
        for _ in range(100):
            yield b" " * 1000

    for arguments in (
        {"data": b" " * 20_000},
        {"data": chunks()},
        {"data": b" " * 20_000, "compress": "gzip"},
    ):
        async with fleet.http.post(url, headers=headers, **arguments) as response:
            body = await response.json()
            assert response.status == 413 and is_openai_error(body), arguments.keys()
            assert "larger than 10000 bytes" in body["error"]["message"]
    assert fleet.engine.seen == []


async def test_nobody_is_asked_to_send_a_body_that_will_be_refused(start: Any) -> None:
    """curl asks with `Expect: 100-continue` before a large upload."""
    fleet = await start(max_body_bytes=10_000)

    async def first_line(key: str, length: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", fleet.config.port)
        writer.write(fleet.head(length, "Expect: 100-continue", key=key))
        line = await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        return line

    assert b" 401 " in await first_line("wrong", 50)
    assert b" 413 " in await first_line("a-key-for-the-tests-0123456789", 20_000)
    assert b" 100 " in await first_line("a-key-for-the-tests-0123456789", 50)


async def test_a_body_that_never_comes_is_a_408(start: Any) -> None:
    fleet = await start(body_s=0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.config.port)
    writer.write(fleet.head(50) + b"{")
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()


async def test_a_header_without_end_is_refused(start: Any) -> None:
    fleet = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.config.port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 40_000 + b"\r\n\r\n")
    assert b" 431 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()


@pytest.mark.parametrize(
    ("status", "raw", "message", "code"),
    [
        (
            400,
            {"object": "error", "message": "no such", "type": "BadRequest", "code": 400},
            "no such",
            "engine_refused",
        ),
        (400, {"error": {"message": "nested", "code": "x", "param": "tools"}}, "nested", "x"),
        (422, {"detail": "told"}, "told", "engine_refused"),
        (400, {"message": VALIDATION}, "tools: Input should be a valid list; n: Don't", "engine_refused"),
        (
            400,
            {"message": "1 validation error:\n  odd"},
            "The engine does not accept a field of this request.",
            "engine_refused",
        ),
        (
            500,
            {"message": 'Internal server error: x\n\n  File "/secret.py", line 1'},
            "Internal server error: x",
            "engine_error",
        ),
        (500, "<html>", "The engine answered 500 without saying why.", "engine_error"),
    ],
)
async def test_the_engines_errors_come_back_in_openais_shape(
    start: Any, status: int, raw: Any, message: str, code: str
) -> None:
    fleet = await start()

    async def refuse(_: web.Request, __: dict[str, Any]) -> web.Response:
        text = raw if isinstance(raw, str) else json.dumps(raw)
        return web.Response(text=text, status=status, content_type="application/json")

    fleet.engine.behave = refuse
    for stream in (False, True):
        async with fleet.post(stream=stream) as response:
            body = await response.json()
            assert response.status == status and is_openai_error(body)
            assert (body["error"]["message"], body["error"]["code"]) == (message, code)


async def test_an_engine_that_asks_for_a_key_is_not_passed_off_as_the_clients_mistake(start: Any) -> None:
    fleet = await start()

    async def refuse(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.json_response({"error": "Unauthorized"}, status=401)

    fleet.engine.behave = refuse
    async with fleet.post() as response:
        assert response.status == 502 and is_openai_error(await response.json())


@pytest.mark.parametrize("stream", [False, True])
async def test_a_limit_of_ours_that_does_not_fit_behind_the_prompt_is_made_to_fit(
    start: Any, stream: bool
) -> None:
    """SGLang refuses prompt + max_tokens > context. If max_tokens is ours, the client can change nothing."""
    fleet = await start()

    async def engine(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body["max_tokens"] > 4081:
            message = (
                "Requested token count exceeds the model's maximum context length of 4096 tokens. "
                "You requested a total of 99 tokens: 15 tokens from the input messages and 84 tokens for it."
            )
            return web.json_response({"object": "error", "message": message, "code": 400}, status=400)
        return await fleet.engine.answer(request, body)

    fleet.engine.behave = engine
    async with fleet.post(stream=stream) as response:
        assert response.status == 200
        assert response.headers["x-dsv41-max-tokens"] == "4081"
        await response.read()
    assert [body["max_completion_tokens"] for _, _, body in fleet.engine.seen] == [32768, 4081]
    # The client's own number is the client's own business.
    async with fleet.post(stream=stream, max_tokens=5000) as response:
        assert response.status == 400
        assert "maximum context length of 4096" in (await response.json())["error"]["message"]


async def test_health_and_ready_tell_the_truth_and_details_only_with_a_key(start: Any) -> None:
    fleet = await start()
    for path in ("/health", "/ready"):
        async with fleet.get(path, key=None) as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})
        async with fleet.get(path, key="wrong-key-0123456789") as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})
        async with fleet.get(path) as response:
            assert (await response.json())["boot"] == "boot-1"
    fleet.supervisor.say(
        ready=False, state="draining", reason="the operator drains the fleet", retry_after_s=60
    )
    await fleet.until_ready(False)
    async with fleet.get("/health", key=None) as response:
        assert response.status == 200
    async with fleet.get("/ready", key=None) as response:
        assert (response.status, await response.json()) == (503, {"status": "unavailable"})
        assert response.headers["Retry-After"] == "60"
    fleet.supervisor.lose_rank()
    async with asyncio.timeout(5):
        while True:
            async with fleet.get("/health") as response:
                body = await response.json()
                if response.status == 503:
                    break
            await asyncio.sleep(0.01)
    assert body["reason"] == "rank 2 on spark3 was lost"


async def test_metrics_are_prometheus_text(start: Any) -> None:
    fleet = await start()
    async with fleet.post() as response:
        await response.read()
    async with fleet.get("/generate") as response:
        await response.read()
    async with fleet.get("/metrics") as response:
        text = await response.text()
    assert 'dsv41_gateway_requests_total{route="/v1/chat/completions",status="200"} 1\n' in text
    assert 'dsv41_gateway_requests_total{route="other",status="404"} 1\n' in text
    assert "# TYPE dsv41_gateway_ready gauge\ndsv41_gateway_ready 1\n" in text


async def test_the_openapi_document_names_every_route(start: Any) -> None:
    fleet = await start()
    async with fleet.get("/openapi.json") as response:
        document = await response.json()
    for path, operations in document["paths"].items():
        for method in operations:
            url = fleet.url + path.replace("{model}", "deepseek-v4.1-flash")
            async with fleet.http.request(method, url) as response:
                keyless = operations[method].get("security") == [{}]
                assert response.status == (200 if keyless else 401), path


async def test_the_openapi_document_has_a_schema_for_every_route_that_reaches_the_engine(start: Any) -> None:
    fleet = await start()
    async with fleet.get("/openapi.json") as response:
        paths = (await response.json())["paths"]
    for route in ROUTES:
        told = paths[route.path]["post"]
        schema = told["requestBody"]["content"]["application/json"]["schema"]
        # What is named as required is what a request without it is refused for.
        async with fleet.http.post(
            fleet.url + route.path, json={}, headers={"Authorization": "Bearer a-key-for-the-tests-0123456789"}
        ) as response:
            error = (await response.json())["error"]
            assert response.status == 400 and all(name in error["message"] for name in schema.get("required", ()))
        shape = told["responses"]["400"]["content"]["application/json"]["schema"]["properties"]["error"]["required"]
        assert set(shape) <= set(error)
        assert ("text/event-stream" in told["responses"]["200"]["content"]) is route.generates


async def test_no_key_prompt_or_answer_is_ever_logged(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    fleet = await start()
    fleet.engine.behave = fleet.engine.streaming(
        [b'data: {"content": "SECRET-ANSWER"}\n\n', b"data: [DONE]\n\n"]
    )
    message = [{"role": "user", "content": "SECRET-PROMPT"}]
    for arguments in (
        {},
        {"messages": ["SECRET-PROMPT"]},
        {"SECRET-PROMPT": 1},
        {"max_tokens": "SECRET-PROMPT"},
    ):
        async with fleet.post(stream=True, **({"messages": message} | arguments)) as response:
            await response.read()
    async with fleet.get("/v1/models", key="SECRET-KEY-0123456789") as response:
        assert response.status == 401
    fleet.engine.behave = fleet.engine.dies
    async with fleet.post(stream=True, messages=message) as response:
        await response.read()
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.config.port)
    writer.write(b"GET / HTTP/1.1\r\nAuthorization Bearer SECRET-KEY\r\n\r\n")
    assert b" 400 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    shown = "\n".join(f"{r.getMessage()} {r.exc_text} {r.args}" for r in caplog.records)
    assert "SECRET" not in shown and "a-key-for-the-tests" not in shown


async def test_a_bug_is_a_500_and_its_place_is_logged_without_values(
    start: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = await start()

    def broken(*_: object) -> None:
        raise KeyError("SECRET-PROMPT")

    monkeypatch.setattr("dsv41_supervisor.gateway.app.parse", broken)
    async with fleet.post() as response:
        assert response.status == 500 and is_openai_error(await response.json())
    assert "bug in the gateway on /v1/chat/completions: KeyError at " in caplog.text
    assert "SECRET" not in caplog.text
