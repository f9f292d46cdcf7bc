"""loops.py: what counts as a loop in a text, and what a client gets that asked for a look."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web
from dsv41_supervisor.gateway import loops
from dsv41_supervisor.gateway.loops import COPIES, LEAST_CHARS, MAX_PERIOD_CHARS, Guard, Loop, Mode, Watch
from dsv41_supervisor.gateway.protocols import Protocol
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gateway.conftest import DONE, KEY, chunk_event

STRIDE = 1024
WINDOW = COPIES * MAX_PERIOD_CHARS


def fed(text: str, size: int) -> tuple[Loop | None, int]:
    """The first loop of a text that comes in pieces of that size, and how much had come."""
    watch = Watch()
    for at in range(0, len(text), size):
        loop = watch.feed(text[at : at + size])
        assert len(watch._window) <= WINDOW and watch._n_new < STRIDE, "memory is bounded"
        if loop is not None:
            return loop, min(len(text), at + size)
    return None, len(text)


sizes = st.integers(1, 3000)
units = st.one_of(
    st.text(min_size=1, max_size=40), st.text("ab |-\n", min_size=1, max_size=300),
    st.builds(lambda seed, n: "".join(chr(33 + (seed * i * i + i) % 90) for i in range(n)),
              st.integers(1, 10**6), st.integers(1, MAX_PERIOD_CHARS)),
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=3000), units, sizes)
def test_every_exact_loop_is_found_within_its_copies(before: str, unit: str, size: int) -> None:
    enough = max(COPIES * len(unit), LEAST_CHARS)
    loop, came = fed(before + unit * (3 * enough // len(unit) + 1), size)
    assert loop is not None and came <= len(before) + enough + STRIDE + size
    assert loop.period <= len(unit) and loop.copies >= COPIES
    assert loop.character + loop.period * loop.copies <= came
    repeated = (unit * (WINDOW // len(unit) + 2))[: WINDOW]
    assert repeated[loop.period :] == repeated[: -loop.period], "its period is one of the text's"


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=200), units, sizes)
def test_a_loop_that_is_too_short_is_none(before: str, unit: str, size: int) -> None:
    text = (unit * (LEAST_CHARS // len(unit) + 1))[: LEAST_CHARS - 1 - len(before)]
    assert fed("\x00" + before[:-1] + text, size)[0] is None


runs = st.lists(st.tuples(st.text("ab", min_size=1, max_size=5), st.integers(1, 900)), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(runs, st.integers(0, 40), st.integers(1, 4))
def test_the_period_is_the_one_that_looking_at_each_gives(pieces: list[tuple[str, int]], cut: int, times: int) -> None:
    """Runs in runs, of two letters: what a shortcut gets wrong."""
    text = ("".join(piece * n for piece, n in pieces) * times * 7)[: WINDOW - cut]

    def has(period: int) -> bool:
        length = max(COPIES * period, LEAST_CHARS)
        return length <= len(text) and text[-length:-period] == text[period - length :]

    assert loops.period_of_end(text) == next(filter(has, range(1, MAX_PERIOD_CHARS + 1)), None)


def rows(n: int) -> dict[str, str]:
    return {
        "a list that counts": "".join(f"{i}. Do the same thing once more\n" for i in range(n)),
        "a table": "| id | name | ok |\n|---|---|---|\n" + "".join(f"| {i} | row | yes |\n" for i in range(n)),
        "code": "".join(f"    assert f({i}) == {i * i}\n    x[{i}] = 0\n" for i in range(n)),
        "json": json.dumps([{"id": i, "value": 0, "tags": []} for i in range(n)], indent=4),
        "blank columns": "".join(f"{i}{' ' * 900}x\n" for i in range(n)),
        "rulers": "".join(f"{'=' * 400}\nPart {i}\n{'-' * 400}\n" for i in range(n)),
        "one page written three times": "".join(str(i * 7919) for i in range(300)) * 3,
    }


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(sorted(rows(0))), st.integers(1, 1200), sizes)
def test_what_good_answers_look_like_is_no_loop(kind: str, n: int, size: int) -> None:
    assert fed(rows(n)[kind], size)[0] is None


@settings(deadline=None, max_examples=30)
@given(st.integers(1, LEAST_CHARS - 1), st.sampled_from(" \n0-"), sizes)
def test_a_run_of_one_character_below_the_limit_is_no_loop(n: int, character: str, size: int) -> None:
    text = "".join(f"{i}: {character * n}|" for i in range(5))
    assert fed(text, size)[0] is None


# --- in each protocol


def named(name: str, **said: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name} | said)}\n\n".encode()


def call_event(text: str) -> bytes:
    call = {"index": 0, "function": {"arguments": text}}
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}).encode() + b"\n\n"


EVENTS = {
    "text": (Protocol.OPENAI, chunk_event),
    "a call": (Protocol.OPENAI, call_event),
    "a message": (Protocol.ANTHROPIC, lambda text: named("content_block_delta", delta={"text": text})),
    "thinking": (Protocol.ANTHROPIC, lambda text: named("content_block_delta", delta={"thinking": text})),
    "a response": (Protocol.RESPONSES, lambda text: named("response.output_text.delta", delta=text)),
}  # fmt: skip


@pytest.mark.parametrize("kind", EVENTS)
def test_a_guard_reads_the_text_of_each_protocol(kind: str) -> None:
    protocol, event = EVENTS[kind]
    guard = Guard(Mode.OBSERVE, protocol)
    found = [loop for _ in range(300) if (loop := guard.look(event("so and ") + event("so on; ")))]
    assert [str(loop) for loop in found] == ["character=9; period=14; copies=293"], "once, and no more"


def test_two_choices_that_interleave_are_two_texts() -> None:
    guard, events = Guard(Mode.OBSERVE, Protocol.OPENAI), []
    for n in range(1000):
        for index, text in ((0, "again "), (1, f"{n} ")):
            events.append(b"data: " + json.dumps({"choices": [{"index": index, "delta": {"content": text}}]}).encode())
    assert guard.look(b"\n\n".join(events) + b"\n\n") == Loop(4, 6, 683)


@pytest.mark.parametrize(
    "odd",
    [
        b"", b"data: {", b"data: []\n\n", b'data: {"choices": [1, {"delta": 3}], "delta": 1}\n\n',
        b'data: {"delta":' + b"[" * 100_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("protocol", list(Protocol))
def test_events_that_mean_nothing_break_nothing(protocol: Protocol, odd: bytes) -> None:
    assert Guard(Mode.STOP, protocol).look(odd) is None


def test_an_engine_that_counts_choices_for_ever_takes_no_memory_for_them() -> None:
    guard = Guard(Mode.OBSERVE, Protocol.OPENAI)
    for index in range(500):
        said = {"choices": [{"index": index, "delta": {"content": "a"}}]}
        guard.look(b"data: " + json.dumps(said).encode() + b"\n\n")
    assert len(guard._watches) == 64


def test_a_text_of_megabytes_in_one_piece_is_looked_at_from_its_end() -> None:
    text = "".join(map(str, range(600_000)))
    assert Guard(Mode.OBSERVE, Protocol.OPENAI).look_at_answer({"choices": [{"text": text}]}) is None
    loop = Guard(Mode.OBSERVE, Protocol.OPENAI).look_at_answer({"choices": [{"text": text + "ab" * 10_000}]})
    assert loop is not None and loop.character >= len(text) and loop.period == 2


REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": ({}, "text"),
    "/v1/responses": ({"input": "hi"}, "a response"),
    "/v1/messages": ({"max_tokens": 5}, "a message"),
}


def ask(fleet: Any, guard: str | None, path: str = "/v1/chat/completions", **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {KEY}"} | ({} if guard is None else {loops.HEADER: guard})
    if path != "/v1/responses":
        body |= {"messages": [{"role": "user", "content": "hi"}]}
    return fleet.http.post(fleet.url + path, json=body, headers=headers)


def repeats_for_ever(fleet: Any, event: Any) -> Any:
    async def behave(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        out = await fleet.engine.open(request)
        while True:
            await out.write(event("again and again "))

    return behave


@pytest.mark.parametrize("path", REQUESTS)
async def test_who_asks_for_stop_is_told_why_and_the_engine_stops(start: Any, path: str) -> None:
    fleet = await start()
    body, kind = REQUESTS[path]
    fleet.engine.behave = repeats_for_ever(fleet, EVENTS[kind][1])
    async with ask(fleet, "stop", path, stream=True, **body) as response:
        assert response.status == 200 and response.headers[loops.HEADER] == "stop"
        raw = await response.read()
        name = response.headers["x-request-id"]
    *_, comment, last = raw.rstrip(b"\n").split(b"\n\n")
    assert comment.startswith(b": x-dsv41-loop character=0; period=16; copies=")
    error = json.loads(last[last.rindex(b"data: ") + 6 :])["error"]
    assert error["code"] == "repetition" and "repeated its last 16 characters" in error["message"]
    await fleet.until(lambda: fleet.engine.left == 1)
    await fleet.until(lambda: any(aborted.endswith(name) for aborted in fleet.engine.aborted))
    text = await fleet.metrics()
    assert f'dsv41_gateway_loops_total{{route="{path}",guard="stop"}} 1\n' in text
    assert f'dsv41_gateway_answers_total{{route="{path}",finish="repetition"}} 1\n' in text
    assert 'dsv41_gateway_key_repetitions_total{key="me"} 1\n' in text


async def test_who_asks_to_observe_gets_every_byte_and_a_comment(start: Any) -> None:
    fleet = await start()
    events = [chunk_event("again and again ") for _ in range(400)]
    fleet.engine.behave = fleet.engine.streaming([*events, DONE])
    async with ask(fleet, "observe", stream=True) as response:
        raw = await response.read()
    (comment,) = [part for part in raw.split(b"\n\n") if part.startswith(b":")]
    assert comment.startswith(b": x-dsv41-loop character=")
    assert raw.replace(comment + b"\n\n", b"") == b"".join(events) + DONE
    for nobody in (None, "off"):
        async with ask(fleet, nobody, stream=True) as response:
            assert await response.read() == b"".join(events) + DONE and loops.HEADER not in response.headers
    assert 'dsv41_gateway_loops_total{route="/v1/chat/completions",guard="observe"} 1\n' in await fleet.metrics()


@pytest.mark.parametrize("answer", [
    {"choices": [{"index": 0, "message": {"content": "ha" * 5000}}]},
    {"choices": [{"index": 0, "message": {"tool_calls": [{"function": {"arguments": "ha" * 5000}}]}}]},
    {"choices": [{"index": 0, "text": "ha" * 5000}]},
    {"content": [{"type": "text", "text": "nothing"}, {"type": "thinking", "thinking": "ha" * 5000}]},
    {"output": [{"type": "message", "content": [{"type": "output_text", "text": "ha" * 5000}]}]},
])  # fmt: skip
async def test_an_answer_in_one_piece_says_it_in_a_header(start: Any, answer: dict[str, Any]) -> None:
    fleet = await start()

    async def whole(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.json_response(answer)

    fleet.engine.behave = whole
    async with ask(fleet, "stop") as response:
        assert response.status == 200 and await response.json() == answer
        assert response.headers["x-dsv41-loop"] == "character=0; period=2; copies=2048"
    async with ask(fleet, None) as response:
        assert "x-dsv41-loop" not in response.headers


async def test_a_guard_that_does_not_exist_is_a_400(start: Any) -> None:
    fleet = await start()
    async with ask(fleet, "kill") as response:
        error = (await response.json())["error"]
        assert response.status == 400 and error["param"] == loops.HEADER
        assert error["message"] == "x-dsv41-loop-guard is none of observe, stop, off."
    assert not fleet.engine.seen
