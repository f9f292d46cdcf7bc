"""Markup of the model's tool calls that came out as text: its parser did not know it, or it was cut in half. Pure.

A request that asks about this markup gets it honestly, so a count says where to look and not what is wrong.
Seen in leaks: `<｜DSML｜ calls>`, `<|DSML|tool_use>`, `< | DSML | tool_use>`. Source: smg PR 2525, vllm PR 45877.
"""

from __future__ import annotations

import json
import re
from typing import Any

from .protocols import Protocol

WORD = b"DSML"
"""Without it nothing else is looked at: one search in bytes that are there anyway."""

_MARK = re.compile(rb"(?:\xef\xbd\x9c|\||uff5c) ?DSML")
_DELTA = {
    Protocol.RESPONSES: re.compile(rb"event: response\.[a-z_.]+\.delta\n"),
    Protocol.ANTHROPIC: re.compile(rb"event: content_block_delta\n"),
}
"""Other events repeat what was said, or what was asked."""


def in_events(protocol: Protocol, events: bytes) -> bool:
    """Whole events of a stream. A mark that the engine cuts in two between events is not seen."""
    delta = _DELTA.get(protocol)
    if delta is None:
        return _MARK.search(events) is not None
    return any(_MARK.search(event) and delta.match(event) for event in events.split(b"\n\n"))


def in_answer(protocol: Protocol, content: bytes, said: dict[str, Any]) -> bool:
    """A whole answer. A response also holds its instructions and tools, which are the client's."""
    if WORD not in content:
        return False
    if protocol is Protocol.RESPONSES:
        try:
            content = json.dumps(said.get("output")).encode()
        except RecursionError:  # it could just be read
            return False
    return _MARK.search(content) is not None
