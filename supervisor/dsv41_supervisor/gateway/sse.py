"""Server-sent events, as far as a gateway has to know them. Pure.

Bytes pass through unchanged. Only whole events are let out, so that between any two writes a comment or an
error event can be put in without cutting one of the engine's events in half.
"""

from __future__ import annotations

import json
from typing import Any

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: every client ignores it, and proxies in between see that the stream lives."""

MAX_HELD_BYTES = 4 << 20
"""An event larger than this is let out in pieces. Guess; with top log-probabilities one has some 10 kB."""


class WholeEvents:
    """Takes chunks as they arrive, gives back the whole events among them, holds the rest.

    Attributes: `at_boundary`: the bytes given back end with a whole event. `done`: the last event is
    `[DONE]`.
    """

    def __init__(self) -> None:
        self._held = b""
        self._tail = b"\n\n"

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that can go to the client now; may be empty."""
        joined = self._held + chunk if self._held else chunk
        end = len(joined) if joined.endswith(b"\n\n") else _last_end(joined)
        if len(joined) - end > MAX_HELD_BYTES:
            end = len(joined)
        self._held = joined[end:]
        return self._out(joined[:end])

    def flush(self) -> bytes:
        """What is held, when the engine ended the stream itself."""
        held, self._held = self._held, b""
        return self._out(held)

    def _out(self, released: bytes) -> bytes:
        if released:
            self._tail = (self._tail + released[-32:])[-32:]
        return released

    @property
    def at_boundary(self) -> bool:
        return self._tail.endswith((b"\n\n", b"\r\n\r\n"))

    @property
    def done(self) -> bool:
        return self._tail.rstrip().endswith(b"data: [DONE]")


def _last_end(text: bytes) -> int:
    """Where the last whole event ends; 0 when there is none."""
    return max((text.rfind(mark) + len(mark) if mark in text else 0) for mark in (b"\n\n", b"\r\n\r\n"))


def event(payload: dict[str, Any], *, after_boundary: bool = True) -> bytes:
    """One `data:` event; `after_boundary` false first ends the one that was left open."""
    return (b"" if after_boundary else b"\n\n") + b"data: " + json.dumps(payload).encode() + b"\n\n"
