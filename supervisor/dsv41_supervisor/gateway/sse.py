"""Server-sent events, as far as a gateway has to know them. Pure.

Bytes pass through unchanged. Only whole events are let out, so that between any two writes a comment or an
error event can be put in without cutting one of the engine's events in half.
"""

from __future__ import annotations

import json
from typing import Any

from .answers import Failure
from .protocols import Protocol

MAX_HELD_BYTES = 4 << 20
"""An event larger than this is let out in pieces. Guess; with top log-probabilities one has some 10 kB."""

_HEAD_BYTES = 64
"""Of an event, to know its name."""


class WholeEvents:
    """Takes chunks as they arrive, gives back the whole events among them, holds the rest.

    Attributes: `at_boundary`: the bytes given back end with a whole event. `done`: the last event is one that
    ends an answer in this protocol.
    """

    def __init__(self, protocol: Protocol = Protocol.OPENAI) -> None:
        self._protocol = protocol
        self._held = b""
        self._let_out = b""
        """The end of what was let out, from the beginning of an event on."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that can go to the client now; may be empty."""
        joined = self._held + chunk if self._held else chunk
        if joined.endswith(b"\n\n"):
            self._held = b""
            return self._out(joined)
        end = _last_end(joined)
        if len(joined) - end > MAX_HELD_BYTES:
            end = len(joined)
        self._held = joined[end:]
        return self._out(joined[:end])

    def flush(self) -> bytes:
        """What is held, when the engine ended the stream itself."""
        held, self._held = self._held, b""
        return self._out(held)

    def _out(self, released: bytes) -> bytes:
        """Runs with every event, so it only keeps what `done` looks at."""
        if released:
            self._let_out = released if self.at_boundary else self._last_event() + released
        return released

    def _last_event(self) -> bytes:
        """The last event that was let out; of a long one, how it begins and ends."""
        start = self._let_out.rfind(b"\n\n", 0, max(0, len(self._let_out) - 2)) + 2
        last = self._let_out[start:] if start > 1 else self._let_out
        return last if len(last) <= 2 * _HEAD_BYTES else last[:_HEAD_BYTES] + b" " + last[-_HEAD_BYTES:]

    @property
    def at_boundary(self) -> bool:
        return not self._let_out or self._let_out.endswith((b"\n\n", b"\r\n\r\n"))

    @property
    def done(self) -> bool:
        # `[DONE]` is whole without the blank line behind it, the others are not.
        whole = self.at_boundary or self._protocol is Protocol.OPENAI
        return whole and self._last_event().startswith(self._protocol.last_events)


def _last_end(text: bytes) -> int:
    """Where the last whole event ends; 0 when there is none."""
    return max((text.rfind(mark) + len(mark) if mark in text else 0) for mark in (b"\n\n", b"\r\n\r\n"))


def event(payload: dict[str, Any], name: str | None = None) -> bytes:
    named = f"event: {name}\n".encode() if name else b""
    return named + b"data: " + json.dumps(payload).encode() + b"\n\n"


def error_events(
    protocol: Protocol,
    failure: Failure,
    *,
    after_boundary: bool = True,
    begun: dict[str, Any] | None = None,
    number: int = 0,
) -> bytes:
    """The end of a stream that cannot go on, as this protocol says it. `after_boundary` false first ends an open event.

    For Responses, `begun` is the response object that the stream began with, `number` the next event's. Clients
    that follow the object see it fail; others, OpenAI's SDK among them, know only the event `error`.
    """
    out = b"" if after_boundary else b"\n\n"
    payload = failure.payload(protocol)
    if protocol is Protocol.ANTHROPIC:
        return out + event(payload, "error")
    if protocol is Protocol.OPENAI:
        return out + event(payload)
    if begun is not None:
        # Their list of codes has none of ours. Codex asks again at each but this one, and would loop six times.
        code = "invalid_prompt" if failure.code == "repetition" else "server_error"
        told = {"code": code, "message": failure.message}
        failed = {"type": "response.failed", "response": begun | {"status": "failed", "error": told}}
        out += event(failed | {"sequence_number": number}, "response.failed")
        number += 1
    flat = {"code": failure.code, "message": failure.message, "param": failure.param}
    return out + event({"type": "error", "sequence_number": number} | flat | payload, "error")
