"""What passes by on its way to the client: how much was used, and why it ended. Pure; bytes stay as they are.

Only events that can say something are parsed: the names looked for cannot be part of a text, because quotes and
line ends inside JSON strings are escaped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from . import markup
from .answers import json_object
from .protocols import Protocol

_CHAT = re.compile(rb'"(?:finish_reason": ?"|(?:usage|error)": ?\{)')
_CHAT_USAGE = re.compile(rb'"choices": ?\[\], ?"usage": ?\{')
_NAMED = {
    Protocol.RESPONSES: re.compile(rb"event: response\.(?:created|completed|incomplete|failed)\n"),
    Protocol.ANTHROPIC: re.compile(rb"event: (?:message_start|message_delta|error)\n"),
}
_NUMBER = re.compile(rb'"sequence_number": ?(\d+)')
_LOOP = re.compile(r"repetition: (?:exact|near|shuffled) repetition from output token (\d{1,9}),")
"""How the adapter loop_abort ends a loop. More than the word: a client may have a stop text of its own."""
_FINISHES = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls",
    "max_output_tokens": "length",
}  # fmt: skip
"""Every protocol's reason, in OpenAI's words."""
_KNOWN = frozenset({*_FINISHES.values(), "content_filter", "abort", "function_call", "repetition", "error"})
"""Others are "other": they become a header and the label of a counter."""
_CALLS = ("function_call", "custom_tool_call")
_MAX_COUNT = 1 << 40


@dataclass(slots=True)
class Seen:
    """What is known of one answer. A count is None until the engine has said it."""

    prompt_tokens: int | None = None
    """Cached ones included."""
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    finish: str | None = None
    """stop, length, tool_calls, repetition, error, engine_lost, client_gone."""
    at_token: int | None = None
    """Where a repetition began."""
    events: int = 0
    """Of a stream, as passed on: each has a token at least, where the engine was stopped before it counted."""
    leaked: bool = False
    """Its text holds markup of tool calls."""
    begun: dict[str, Any] | None = field(default=None, repr=False)
    """The response object of a Responses stream that has not ended."""

    def headers(self) -> dict[str, str]:
        return {} if self.finish is None else {"x-dsv41-finish": self._told()}

    def comments(self) -> list[bytes]:
        """What a stream says beside its events: only what no protocol has a word for."""
        return [f": x-dsv41-finish {self._told()}".encode()] if self.finish == "repetition" else []

    def _told(self) -> str:
        return f"{self.finish}" if self.at_token is None else f"{self.finish}; token={self.at_token}"

    def read(self, protocol: Protocol, said: dict[str, Any]) -> None:
        """One JSON object of the engine's: a whole answer, or an event that tells something."""
        if protocol is Protocol.ANTHROPIC:
            message = said.get("message")
            inner = message if isinstance(message, dict) else said
            self._usage(inner.get("usage"), "input_tokens", "output_tokens")
            delta = said.get("delta")
            end = delta if isinstance(delta, dict) else inner
            reason = self._loop(end.get("stop_sequence")) or end.get("stop_reason")
        elif protocol is Protocol.RESPONSES:
            response = said.get("response")
            inner = response if isinstance(response, dict) else said
            self.begun = inner if said.get("type") == "response.created" else None
            self._usage(inner.get("usage"), "input_tokens", "output_tokens")
            reason = self._responses_reason(inner)
        else:
            self._usage(said.get("usage"), "prompt_tokens", "completion_tokens")
            reason = self._chat_reason(said.get("choices"))
        if "error" in said and said["error"]:
            reason = "error"
        if isinstance(reason, str):
            reason = _FINISHES.get(reason, reason)
            self.finish = reason if reason in _KNOWN else "other"

    def _usage(self, usage: object, prompt: str, completion: str) -> None:
        if not isinstance(usage, dict):
            return
        details = _part(usage, f"{prompt}_details")
        cached = usage.get("cache_read_input_tokens", details.get("cached_tokens"))
        reasoning = _part(usage, f"{completion}_details").get("reasoning_tokens", usage.get("reasoning_tokens"))
        if (count := _count(usage.get(prompt))) is not None:
            self.prompt_tokens = count + (_count(usage.get("cache_read_input_tokens")) or 0)
        if (count := _count(usage.get(completion))) is not None:
            self.completion_tokens = count
        if (count := _count(cached)) is not None:
            self.cached_tokens = count
        if (count := _count(reasoning)) is not None:
            self.reasoning_tokens = count

    def _chat_reason(self, choices: object) -> object:
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return None
        return self._loop(choices[0].get("matched_stop")) or choices[0].get("finish_reason")

    def _responses_reason(self, response: dict[str, Any]) -> object:
        status = response.get("status")
        if status == "incomplete":
            details = _part(response, "incomplete_details")
            return self._loop(details.get("matched_stop")) or details.get("reason")
        if status == "completed":
            output = response.get("output")
            items = output if isinstance(output, list) else []
            calls = any(isinstance(item, dict) and item.get("type") in _CALLS for item in items)
            return "tool_calls" if calls else "stop"
        return "error" if status == "failed" else None

    def _loop(self, matched: object) -> str | None:
        """What ended the answer, by the text that SGLang or the adapter says for it: a loop, or something else."""
        found = _LOOP.match(matched) if isinstance(matched, str) else None
        if found is None:
            return None
        self.at_token = int(found[1])
        return "repetition"


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < _MAX_COUNT else None


def _part(holder: dict[str, Any], name: str) -> dict[str, Any]:
    part = holder.get(name)
    return part if isinstance(part, dict) else {}


class Observer:
    """Looks at whole events as they pass. `hide_usage`: the client did not ask for the chunk that we asked for."""

    def __init__(self, protocol: Protocol, seen: Seen, *, hide_usage: bool = False) -> None:
        self.seen = seen
        self._protocol = protocol
        self._hide_usage = hide_usage
        self._interesting = _NAMED.get(protocol, _CHAT)
        self._last = b""

    def look(self, events: bytes) -> bytes:
        """The bytes for the client: these, without the usage chunk it did not ask for."""
        self.seen.events += events.count(b"\n\n")
        if self._protocol is Protocol.RESPONSES and events:
            self._last = events
        if markup.WORD in events:
            self.seen.leaked |= markup.in_events(self._protocol, events)
        if self._interesting.search(events) is None:
            return events
        kept = []
        for raw in events.split(b"\n\n"):
            if self._interesting.search(raw):
                self._read(raw)
                if self._hide_usage and _CHAT_USAGE.search(raw):
                    continue
                if b'"repetition' in raw:
                    kept += [raw, *self.seen.comments()]
                    continue
            kept.append(raw)
        return b"\n\n".join(kept)

    def _read(self, raw: bytes) -> None:
        said = json_object(raw.partition(b"data: ")[2])
        if said is not None:
            self.seen.read(self._protocol, said)

    @property
    def next_number(self) -> int:
        """The number that the next event of a Responses stream has."""
        numbers = _NUMBER.findall(self._last)
        return int(numbers[-1]) + 1 if numbers else 0
