"""How an answer tells that a loop ended it, where SGLang drops it: in the process that speaks HTTP.

The scheduler's `matched_stop` reaches a chat only, and of a whole one with tool calls not even that. Messages get
Anthropic's own word for it, `stop_reason: "stop_sequence"`, with the text in `stop_sequence`. Responses have no word:
such an answer is `incomplete`, and the text stands in `incomplete_details.matched_stop`. The `reason` beside it stays
SGLang's `max_output_tokens`: LiteLLM 1.110.2 fails at one that is not in OpenAI's list (tried 2026-11-30).
Nothing of sglang is imported: its objects are given.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from .spec import CHAT, MESSAGES, RESPONSES

if TYPE_CHECKING:
    from ..activation import AdapterRun

_LOOP = re.compile(
    r"repetition: (?:exact|near|shuffled) repetition from output token \d+, \d+ copies of about \d+ tokens"
    r"(?:, inside a tool call, whose arguments are not whole)?"
)
_IN_CHUNK = '"matched_stop":"repetition: '
"""As SGLang writes it in a chunk; inside a text the quotes would be escaped."""
_LAST_EVENT = "event: message_delta\ndata: "


class Stopped(str):
    """The text of a loop that this adapter stopped, and not of a stop text that the client had asked for."""

    __slots__ = ()


class _Incomplete(str):
    """The status `incomplete` of a response, with the loop that is the reason."""

    __slots__ = ("loop",)
    loop: Stopped


def hooks(run: AdapterRun) -> dict[str, object]:
    """Hook by target, as `spec.py` declares them for the launcher."""
    return {
        f"{CHAT}._build_chat_response": keeps_it_in_a_chat(run),
        f"{MESSAGES}._convert_response": tells_it_in_a_message(run),
        f"{MESSAGES}._generate_anthropic_stream": tells_it_in_a_stream_of_messages(run),
        f"{RESPONSES}._status_from_finish_reason": is_incomplete(run),
        f"{RESPONSES}._build_response": tells_it_in_a_response(run),
    }


def stopped(matched: object, asked: object) -> Stopped | None:
    """What `matched` says, if it is a loop's and the client did not ask for this very text as its `stop`."""
    if not isinstance(matched, str) or _LOOP.fullmatch(matched) is None:
        return None
    own = asked if isinstance(asked, list) else [asked]
    return None if matched in own else Stopped(matched)


def keeps_it_in_a_chat(run: AdapterRun) -> Callable[..., Any]:
    """AROUND `_build_chat_response`: SGLang forgets what was matched when a whole answer has tool calls."""

    def build(original: Callable[..., Any], chat: Any, request: Any, ret: list[dict[str, Any]], *more: Any) -> Any:
        run.engaged()
        loops = [stopped(_matched(item["meta_info"].get("finish_reason")), request.stop) for item in ret]
        response = original(chat, request, ret, *more)
        for choice, loop in zip(getattr(response, "choices", ()), loops, strict=False):
            if loop is not None:
                choice.matched_stop = loop
        return response

    return build


def tells_it_in_a_message(run: AdapterRun) -> Callable[..., None]:
    """AFTER `_convert_response`, which makes a message of a whole chat answer."""

    def after(message: Any, messages: Any, response: Any) -> None:
        run.engaged()
        loop = response.choices[0].matched_stop if response.choices else None
        if isinstance(loop, Stopped):
            message.stop_reason, message.stop_sequence = "stop_sequence", str(loop)

    return after


def tells_it_in_a_stream_of_messages(run: AdapterRun) -> Callable[..., AsyncGenerator[str, None]]:
    """AROUND `_generate_anthropic_stream`, which reads a chat stream and knows nothing else of its endpoint."""

    async def generate(
        original: Callable[..., AsyncGenerator[str, None]], messages: Any, adapted: Any, chat_request: Any, *more: Any
    ) -> AsyncGenerator[str, None]:
        run.engaged()
        heard = _Heard(messages.openai_serving_chat, chat_request.stop)
        async with aclosing(original(heard, adapted, chat_request, *more)) as events:
            async for event in events:
                if heard.loop is not None and event.startswith(_LAST_EVENT):
                    event = _ended_by(heard.loop, event)
                yield event

    return generate


class _Heard:
    """Stands for the Messages endpoint, and for its chat endpoint, in one stream: remembers a loop that goes by."""

    def __init__(self, chat: Any, asked: object) -> None:
        self.openai_serving_chat = self
        self.loop: Stopped | None = None
        self._chat = chat
        self._asked = asked

    async def _generate_chat_stream(self, *request: Any) -> AsyncIterator[str]:
        async with aclosing(self._chat._generate_chat_stream(*request)) as chunks:
            async for chunk in chunks:
                if _IN_CHUNK in chunk:
                    (choice, *_) = json.loads(chunk.removeprefix("data: "))["choices"]
                    self.loop = stopped(choice["matched_stop"], self._asked)
                yield chunk


def _ended_by(loop: Stopped, event: str) -> str:
    said = json.loads(event.removeprefix(_LAST_EVENT))
    said["delta"] |= {"stop_reason": "stop_sequence", "stop_sequence": loop}
    return f"{_LAST_EVENT}{json.dumps(said, ensure_ascii=False, separators=(',', ':'))}\n\n"


def is_incomplete(run: AdapterRun) -> Callable[..., str | None]:
    """AFTER `_status_from_finish_reason`, for whole answers and streams: `completed` would be a clean success."""

    def after(status: str, finish_reason: Any) -> str | None:
        run.engaged()
        loop = stopped(_matched(finish_reason), None)
        if loop is None:
            return None
        told = _Incomplete("incomplete")
        told.loop = loop
        return told

    return after


def tells_it_in_a_response(run: AdapterRun) -> Callable[..., Any]:
    """AROUND `_build_response`, which is given the status of the hook above, and knows the request."""

    def build(original: Callable[..., Any], request: Any, *more: Any, status: str, **fields: Any) -> Any:
        run.engaged()
        if not isinstance(status, _Incomplete):
            return original(request, *more, status=status, **fields)
        if stopped(status.loop, request.stop) is None:
            return original(request, *more, status="completed", **fields)
        response = original(request, *more, status=str(status), **fields)
        details = response.incomplete_details or {"reason": "max_output_tokens"}
        response.incomplete_details = {**details, "matched_stop": str(status.loop)}
        return response

    return build


def _matched(finish_reason: Any) -> object:
    return finish_reason.get("matched") if isinstance(finish_reason, dict) else None
