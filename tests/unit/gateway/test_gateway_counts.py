"""What /metrics tells of the model's answers: cached tokens, loops, markup that leaked, and how well it guesses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web
from dsv41_supervisor.gateway import markup, metrics_engine
from dsv41_supervisor.gateway.observe import Observer, Seen
from dsv41_supervisor.gateway.protocols import Protocol

from tests.unit.gateway.conftest import DONE, KEY, chunk_event

LEAKS = ["<｜DSML｜ calls>", "<｜DSML｜tool_calls>", "</ | DSML | invoke>", "<||DSML||tool_calls>"]
"""Source: dsml leaks that clients of other servers reported (smg PR 2525, vllm PR 45877)."""
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"max_tokens": 5},
}


def named(name: str, **said: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name} | said, ensure_ascii=False)}\n\n".encode()


def text_event(protocol: Protocol, text: str) -> bytes:
    if protocol is Protocol.RESPONSES:
        return named("response.output_text.delta", delta=text)
    if protocol is Protocol.ANTHROPIC:
        return named("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
    return chunk_event(text)


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("text", [*LEAKS, "\\uff5cDSML\\uff5c"])
def test_markup_in_a_streamed_text_is_seen_and_left_alone(protocol: Protocol, text: str) -> None:
    raw = text_event(protocol, "eins") + text_event(protocol, f"zwei {text} drei")
    observer = Observer(protocol, Seen())
    assert observer.look(raw) == raw and observer.seen.leaked
    for harmless in ("DSML is a language", "<DSML>", "DS", "ML｜"):
        observer = Observer(protocol, Seen())
        observer.look(text_event(protocol, harmless))
        assert not observer.seen.leaked, harmless


def test_what_the_client_sent_and_the_engine_repeats_is_no_leak() -> None:
    asked = {"instructions": LEAKS[0], "tools": [LEAKS[1]], "output": [{"text": "nothing"}]}
    observer = Observer(Protocol.RESPONSES, Seen())
    observer.look(named("response.created", response=asked) + named("response.completed", response=asked))
    assert not observer.seen.leaked
    content = json.dumps(asked, ensure_ascii=False).encode()
    assert not markup.in_answer(Protocol.RESPONSES, content, asked)
    told = asked | {"output": [{"text": LEAKS[0]}]}
    assert markup.in_answer(Protocol.RESPONSES, json.dumps(told, ensure_ascii=False).encode(), told)


@pytest.mark.parametrize("path", REQUESTS)
async def test_answers_that_leak_are_counted_once_each_and_by_key(start: Any, path: str) -> None:
    fleet = await start()
    protocol = Protocol.of_path(path)

    async def leaks(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body.get("stream"):
            pieces = [text_event(protocol, LEAKS[0]), text_event(protocol, LEAKS[1])]
            return await fleet.engine.streaming(pieces)(request, body)  # and no end: it leaked all the same
        return web.json_response({"output": LEAKS[0], "choices": [], "content": []})

    fleet.engine.behave = leaks
    for stream in (False, True):
        async with fleet.post(path, stream=stream, **REQUESTS[path]) as response:
            await response.read()
    text = await fleet.metrics()
    assert "\ndsv41_gateway_leaked_markup_total 2\n" in text
    assert '\ndsv41_gateway_key_leaked_markup_total{key="me"} 2\n' in text


async def test_each_keys_cached_tokens_and_loops_are_counted(start: Any) -> None:
    other = "another-key-of-the-tests-987654"
    fleet = await start(key_lines=f"me:{KEY}\nyou:{other}\n")
    usage = {"prompt_tokens": 50, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 40}}
    loop = "repetition: exact repetition from output token 9, 1 x 9"
    end = {"index": 0, "delta": {}, "finish_reason": "stop", "matched_stop": loop}
    last = [{"choices": [end]}, {"choices": [], "usage": usage}]
    events = [b"data: " + json.dumps(said).encode() + b"\n\n" for said in last]
    fleet.engine.behave = fleet.engine.streaming([chunk_event("a"), *events, DONE])
    for key in (KEY, KEY, other):
        async with fleet.post(key=key, stream=True) as response:
            assert b": x-dsv41-finish repetition; token=9\n\n" in await response.read()
    text = await fleet.metrics()
    for name, mine, yours in (("prompt_tokens", 100, 50), ("cached_tokens", 80, 40), ("repetitions", 2, 1)):
        assert f'\ndsv41_gateway_key_{name}_total{{key="me"}} {mine}\n' in text
        assert f'\ndsv41_gateway_key_{name}_total{{key="you"}} {yours}\n' in text
    assert 'answers_total{route="/v1/chat/completions",finish="repetition"} 3\n' in text
    assert "\ndsv41_gateway_cached_tokens_total 120\n" in text


LOOP = "repetition: near repetition from output token 9, 9 copies of about 60 tokens"
ENDS = {
    "/v1/messages": (named("message_delta", delta={"stop_reason": "stop_sequence", "stop_sequence": LOOP}),
                     named("message_stop")),
    "/v1/responses": (named("response.incomplete", response={
        "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens", "matched_stop": LOOP}}),),
}  # fmt: skip


@pytest.mark.parametrize("path", ENDS)
async def test_a_loop_in_the_other_protocols_is_told_and_counted_too(start: Any, path: str) -> None:
    fleet = await start()
    text = text_event(Protocol.of_path(path), "a")
    fleet.engine.behave = fleet.engine.streaming([text, *ENDS[path]])
    async with fleet.post(path, stream=True, **REQUESTS[path]) as response:
        end, *rest = ENDS[path]
        assert await response.read() == b"".join([text, end, b": x-dsv41-finish repetition; token=9\n\n", *rest])
    metrics = await fleet.metrics()
    assert f'answers_total{{route="{path}",finish="repetition"}} 1\n' in metrics
    assert 'dsv41_gateway_key_repetitions_total{key="me"} 1\n' in metrics


ENGINE = """# HELP sglang:spec_accept_length Mean acceptance length of speculative decoding.
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{engine_type="unified",model_name="demo",tp_rank="0"} 2.75
# HELP sglang:spec_accept_length_other x
sglang:num_running_reqs{model_name="demo"} 3.0
sglang:cache_hit_rate{model_name="demo"} 0.5
"""


async def test_how_well_the_engine_guesses_comes_from_its_own_metrics(start: Any) -> None:
    fleet = await start()
    fleet.engine.metrics = '# HELP sglang:much x\nsglang:much{le="1"} 0\n' * 20_000 + ENGINE
    text = await fleet.metrics()
    kept = [line for line in ENGINE.splitlines(keepends=True) if "other" not in line and "running" not in line]
    assert metrics_engine.chosen(ENGINE.encode()) == "".join(kept) and "".join(kept) in text
    await fleet.engine.stop()
    text = await fleet.metrics()
    assert "sglang:" not in text and "dsv41_gateway_ready 1\n" in text
