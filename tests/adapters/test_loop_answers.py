"""loop_abort in the process that speaks HTTP: which texts are a loop's, and what each answer makes of them.

SGLang's own functions are in tests/engine; here each hook has a stand-in for the one that it wraps.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from dsv41_adapters.adapter import Role
from dsv41_adapters.loop_abort import answers
from dsv41_adapters.loop_abort.answers import Stopped, stopped
from dsv41_adapters.loop_abort.detector import Kind, Repetition
from dsv41_adapters.loop_abort.spec import ADAPTER
from dsv41_adapters.loop_abort.watch import Loop
from hypothesis import given
from hypothesis import strategies as st

LOOP = "repetition: exact repetition from output token 128, 9 copies of about 64 tokens"
loops = st.builds(
    Loop,
    st.builds(Repetition, st.integers(0, 10**6), st.integers(512, 10**6), st.integers(1, 10**5), st.sampled_from(Kind)),
    st.integers(64, 65_536), st.integers(512, 10**6), st.booleans(),
)  # fmt: skip


class Run:
    """Counts what tells that a hook was called."""

    n_engaged = 0

    def engaged(self) -> None:
        self.n_engaged += 1


@pytest.fixture
def run() -> Any:
    run = Run()
    yield run
    assert run.n_engaged, "a hook that was called did not say so"


@given(loops)
def test_whatever_the_scheduler_says_of_a_loop_is_known_again(loop: Loop) -> None:
    text = f"repetition: {loop}"
    assert isinstance(stopped(text, None), Stopped) and stopped(text, None) == text
    assert stopped(text, ["\n", "repetition"]) == text


@given(loops, st.lists(st.text(max_size=5), max_size=3))
def test_a_stop_text_that_the_client_asked_for_is_no_loop(loop: Loop, others: list[str]) -> None:
    text = f"repetition: {loop}"
    assert stopped(text, text) is None and stopped(text, [*others, text]) is None


@pytest.mark.parametrize(
    "matched", [None, 1, "", "repetition", "repetition: ", "repetition of things", f" {LOOP}", f"{LOOP}.", [LOOP], "\n"]
)
def test_other_texts_are_no_loop(matched: Any) -> None:
    assert stopped(matched, None) is None


def test_each_process_hooks_its_own_targets() -> None:
    launcher = {target.path for target in ADAPTER.targets if target.hooked_in(Role.LAUNCHER)}
    scheduler = {target.path for target in ADAPTER.targets if target.hooked_in(Role.SCHEDULER)}
    assert set(answers.hooks(Run())) == launcher and not launcher & scheduler and len(scheduler) == 1
    assert launcher | scheduler == {target.path for target in ADAPTER.targets if target.hooked}


def chat_answer(matched: str | None, finish: str = "stop") -> Any:
    return SimpleNamespace(choices=[SimpleNamespace(finish_reason=finish, matched_stop=matched)])


def test_a_whole_chat_with_tool_calls_keeps_what_ended_it(run: Any) -> None:
    """SGLang makes `tool_calls` of `stop` and forgets the rest."""
    ret = [{"meta_info": {"finish_reason": {"type": "stop", "matched": LOOP}}}]
    given = []

    def build(*args: Any) -> Any:
        given.append(args)
        return chat_answer(None, "tool_calls")

    hook = answers.keeps_it_in_a_chat(run)
    request = SimpleNamespace(stop=None)
    (choice,) = hook(build, "chat", request, ret, 5).choices
    assert given == [("chat", request, ret, 5)]
    assert (choice.finish_reason, choice.matched_stop) == ("tool_calls", LOOP)
    assert json.dumps(choice.matched_stop) == json.dumps(LOOP)


@pytest.mark.parametrize(
    ("finish", "asked"),
    [({"type": "stop", "matched": LOOP}, LOOP), ({"type": "stop", "matched": 5}, None), (None, None)],
)
def test_a_chat_that_something_else_ended_stays_as_it_is(run: Any, finish: Any, asked: Any) -> None:
    said = chat_answer("as it was")
    hook = answers.keeps_it_in_a_chat(run)
    told = hook(lambda *_: said, "chat", SimpleNamespace(stop=asked), [{"meta_info": {"finish_reason": finish}}], 5)
    assert told is said and told.choices[0].matched_stop == "as it was"
    assert hook(lambda *_: "an error", "chat", SimpleNamespace(stop=None), [{"meta_info": {}}], 5) == "an error"


@pytest.mark.parametrize("ours", [True, False])
def test_a_message_says_stop_sequence_for_a_loop_alone(run: Any, ours: bool) -> None:
    """Of a text in a chat it is known by then whether it is the client's own."""
    message = SimpleNamespace(stop_reason="end_turn", stop_sequence=None)
    assert answers.tells_it_in_a_message(run)(message, "messages", chat_answer(Stopped(LOOP) if ours else LOOP)) is None
    told = (message.stop_reason, message.stop_sequence)
    assert told == (("stop_sequence", LOOP) if ours else ("end_turn", None))
    answers.tells_it_in_a_message(run)(message, "messages", SimpleNamespace(choices=[]))


class Messages:
    """As SGLang's: its stream is made of a chat's, read line by line."""

    n_closed = 0

    def __init__(self, *chunks: str) -> None:
        self.openai_serving_chat = self
        self._chunks = chunks

    async def _generate_chat_stream(self, adapted: str, request: Any, raw: str) -> AsyncIterator[str]:
        assert (adapted, raw) == ("adapted", "raw")
        for chunk in self._chunks:
            yield chunk

    @staticmethod
    async def stream(messages: Any, adapted: Any, request: Any, asked: Any, raw: Any) -> AsyncIterator[str]:
        assert asked == "asked"
        try:
            async for chunk in messages.openai_serving_chat._generate_chat_stream(adapted, request, raw).__aiter__():
                yield f"event: content_block_delta\ndata: {json.dumps(chunk)}\n\n"
            yield DELTA
            yield "event: message_stop\ndata: {}\n\n"
        finally:
            Messages.n_closed += 1


DELTA = (
    'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    '"usage":{"output_tokens":3}}\n\n'
)


def chunk(matched: str | None, text: str = "ü") -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop", "matched_stop": matched}
    said = json.dumps({"id": "r", "choices": [choice]}, separators=(",", ":"), ensure_ascii=False)
    return f"data: {said}\n\n"


async def streamed(run: Any, *chunks: str, stop: Any = None) -> list[str]:
    hook = answers.tells_it_in_a_stream_of_messages(run)
    events = hook(Messages.stream, Messages(*chunks), "adapted", SimpleNamespace(stop=stop), "asked", "raw")
    return [event async for event in events]


async def test_a_stream_of_messages_says_stop_sequence_in_its_last_event(run: Any) -> None:
    chunks = [chunk(None), chunk(LOOP), "data: [DONE]\n\n"]
    *begin, last, stop = await streamed(run, *chunks)
    assert [json.loads(event.partition("data: ")[2]) for event in begin] == chunks, "nothing else changes"
    assert stop.startswith("event: message_stop")
    assert last == DELTA.replace('"end_turn"', f'"stop_sequence","stop_sequence":"{LOOP}"')


@pytest.mark.parametrize(
    ("chunks", "asked"),
    [([chunk(None), chunk("\n")], None), ([chunk(LOOP)], [LOOP]), ([chunk("repetition: a")], "repetition: a"),
     ([chunk(None, chunk(LOOP))], None)],
    ids=["another stop", "the client's own", "the client's own that is much like it", "a text about chunks"],
)  # fmt: skip
async def test_other_streams_of_messages_pass_unchanged(run: Any, chunks: list[str], asked: Any) -> None:
    assert (await streamed(run, *chunks, stop=asked))[-2] == DELTA


async def test_a_stream_of_messages_that_is_left_is_closed_at_once(run: Any) -> None:
    hook, before = answers.tells_it_in_a_stream_of_messages(run), Messages.n_closed
    events = hook(Messages.stream, Messages(chunk(None)), "adapted", SimpleNamespace(stop=None), "asked", "raw")
    async for _ in events:
        break
    assert Messages.n_closed == before
    await events.aclose()
    assert Messages.n_closed == before + 1


def response(run: Any, finish: Any, stop: Any = None) -> Any:
    """A response as SGLang makes one: first its status, then the object."""

    def sglangs_status(finish_reason: Any) -> str:
        return "incomplete" if finish_reason == {"type": "length"} else "completed"

    def build(request: Any, sampling: Any, *, output: Any, status: str) -> Any:
        assert type(status) is str and sampling == "sampling" and output == []
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return SimpleNamespace(status=status, incomplete_details=details)

    status = sglangs_status(finish)
    status = answers.is_incomplete(run)(status, finish) or status
    assert status in ("incomplete", "completed")
    request = SimpleNamespace(stop=stop)
    return answers.tells_it_in_a_response(run)(build, request, "sampling", output=[], status=status)


def test_a_response_that_a_loop_ended_is_incomplete_and_says_why(run: Any) -> None:
    told = response(run, {"type": "stop", "matched": LOOP})
    assert told.status == "incomplete"
    assert told.incomplete_details == {"reason": "max_output_tokens", "matched_stop": LOOP}


@pytest.mark.parametrize(
    ("finish", "stop", "status"),
    [({"type": "stop", "matched": LOOP}, LOOP, "completed"), ({"type": "stop", "matched": 5}, None, "completed"),
     ({"type": "length"}, None, "incomplete"), ("stop", None, "completed"), (None, None, "completed")],
)  # fmt: skip
def test_other_responses_stay_as_they_are(run: Any, finish: Any, stop: Any, status: str) -> None:
    told = response(run, finish, stop)
    assert told.status == status
    assert told.incomplete_details == ({"reason": "max_output_tokens"} if status == "incomplete" else None)
