"""Text that repeats itself for ever, as a client sees it. Pure; only for clients that ask (`x-dsv41-loop-guard`).

The engine's adapter `loop_abort` knows tokens, prompts and tool calls, and is the better judge. This one needs no
adapter, works on every route, and knows one thing: that the end of the text is one piece, again and again, to the
letter. Rows that count, code and prose are never that; a text of zeros is, so the limits are generous.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .answers import Failure, json_object
from .fields import BadRequest
from .protocols import Protocol

HEADER = "x-dsv41-loop-guard"

COPIES = 6
LEAST_CHARS = 4096
"""Some thousand tokens of nothing else: rulers, blank columns, small matrices are shorter. Guess, as all of these."""
MAX_PERIOD_CHARS = 2048
"""A page. What repeats longer pieces costs a client much before it is seen; then the engine's adapter has to see it."""

_WINDOW_CHARS = COPIES * MAX_PERIOD_CHARS
_STRIDE_CHARS = 1024
_MOST_CHOICES = 64
_TAIL_CHARS = 64
_MOST_TAIL_CHARS = 3400
"""Comes again in every loop: the least that `LEAST_CHARS`, or `COPIES`, leave beside one period."""


class Mode(StrEnum):
    """What is done about a loop."""

    OBSERVE = "observe"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Loop:
    """`character`: of the answer's text, where the copies begin that were looked at."""

    character: int
    period: int
    copies: int

    def __str__(self) -> str:
        return f"character={self.character}; period={self.period}; copies={self.copies}"


class Watch:
    """One text as it grows. A loop is seen at most `_STRIDE_CHARS` after it is long enough."""

    def __init__(self) -> None:
        self._window = ""
        self._n = 0
        """Characters before the window's end."""
        self._new: list[str] = []
        self._n_new = 0

    def feed(self, text: str) -> Loop | None:
        if text:
            self._new.append(text)
            self._n_new += len(text)
        if self._n_new < _STRIDE_CHARS:
            return None
        fresh = "".join(self._new)
        self._new, self._n_new = [], 0
        passed = max(0, len(fresh) - _WINDOW_CHARS)  # a text that comes in one piece is looked at from its end
        self._n += passed
        fresh = fresh[passed:]
        for start in range(0, len(fresh), _STRIDE_CHARS):
            piece = fresh[start : start + _STRIDE_CHARS]
            self._n += len(piece)
            self._window = (self._window + piece)[-_WINDOW_CHARS:]
            period = period_of_end(self._window)
            if period is not None:
                copies = _copies(self._window, period)
                return Loop(self._n - copies * period, period, copies)
        return None


def period_of_end(text: str) -> int | None:
    """The smallest period with which `text` ends, over `COPIES` of it and `LEAST_CHARS`; None when it has none.

    Where it has one, its last few characters come again at that distance: ordinary text fails at the first search.
    """
    if len(text) < LEAST_CHARS:
        return None
    tail, too_short = text[-_TAIL_CHARS:], 0
    while True:
        lowest = max(0, len(text) - len(tail) - MAX_PERIOD_CHARS)
        at = text.rfind(tail, lowest, len(text) - too_short - 1)
        period = len(text) - len(tail) - at
        length = max(COPIES * period, LEAST_CHARS)
        if at < 0 or length > len(text):
            return None
        if _has_period(text, period, length):
            return period
        # A longer period shows in a longer tail, one that this period does not have; and where the two overlapped by
        # both, they had one in common (Fine and Wilf), and this run were longer. So few are tried, also in a blank.
        run = bisect_left(range(length), True, period, key=lambda n: not _has_period(text, period, n)) - 1
        tail, too_short = text[-min(run + 1, _MOST_TAIL_CHARS) :], max(period, run - period)


def _has_period(text: str, period: int, length: int) -> bool:
    return length <= period or text[-length:-period] == text[period - length :]


def _copies(text: str, period: int) -> int:
    piece, n = text[-period:], 1
    while text.endswith(piece, 0, len(text) - n * period):
        n += 1
    return n


class Guard:
    """The texts of one answer. `loop`: the first that was found."""

    def __init__(self, mode: Mode, protocol: Protocol) -> None:
        self.mode = mode
        self.loop: Loop | None = None
        self._protocol = protocol
        self._watches: dict[int, Watch] = {}

    def look(self, events: bytes) -> Loop | None:
        """A loop that these whole events show, once."""
        for raw in events.split(b"\n\n"):
            _, mark, content = raw.partition(b"data: ")
            if mark and self.loop is None and (said := json_object(content)) is not None:
                for index, text in streamed(self._protocol, said):
                    if len(self._watches) < _MOST_CHOICES or index in self._watches:
                        self.loop = self.loop or self._watches.setdefault(index, Watch()).feed(text)
                if self.loop is not None:
                    return self.loop
        return None

    def look_at_answer(self, said: dict[str, Any]) -> Loop | None:
        """The same for a whole answer: whether one of its texts ends in a loop."""
        for text in answered(said):
            self.loop = self.loop or Watch().feed(text)
        return self.loop

    @staticmethod
    def failure(loop: Loop) -> Failure:
        """How a stream ends that is stopped: not as any answer ends that is complete, in no protocol."""
        message = (
            f"The answer repeated its last {loop.period} characters {loop.copies} times, from character "
            f"{loop.character} on, and was ended: the request asked for {HEADER}: stop."
        )
        return Failure(502, message, "repetition", "repetition")


def guard(asked: str | None, protocol: Protocol) -> Guard | None:
    """What the header asks for. Raises BadRequest."""
    if asked is None or asked == "off":
        return None
    try:
        return Guard(Mode(asked.strip().lower()), protocol)
    except ValueError:
        raise BadRequest(f"{HEADER} is none of observe, stop, off.", HEADER) from None


def streamed(protocol: Protocol, said: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """New text in an event, and of which choice: text, thoughts and arguments of calls alike."""
    if protocol is Protocol.OPENAI:
        yield from _choices(said, "delta")
    elif protocol is Protocol.RESPONSES:
        yield from ((0, text) for text in _strings(said, "delta"))
    else:
        yield from ((0, text) for text in _strings(said.get("delta"), "text", "thinking", "partial_json"))


def answered(said: dict[str, Any]) -> Iterator[str]:
    """The texts of a whole answer, of any protocol."""
    yield from (text for _, text in _choices(said, "message"))
    for block in _list(said.get("content")) + _list(said.get("output")):
        yield from _strings(block, "text", "thinking", "arguments", "input")
        for part in _list(block.get("content") if isinstance(block, dict) else None):
            yield from _strings(part, "text")


def _choices(said: dict[str, Any], name: str) -> Iterator[tuple[int, str]]:
    for choice in _list(said.get("choices")):
        if not isinstance(choice, dict):
            continue
        index = choice.get("index")
        n = index if isinstance(index, int) else 0
        part = choice.get(name)
        for text in (*_strings(choice, "text"), *_strings(part, "reasoning_content", "content")):
            yield n, text
        for call in _list(part.get("tool_calls") if isinstance(part, dict) else None):
            function = call.get("function") if isinstance(call, dict) else None
            for text in _strings(function, "arguments"):
                yield n, text


def _strings(holder: Any, *names: str) -> Iterator[str]:
    if isinstance(holder, dict):
        for name in names:
            if isinstance(text := holder.get(name), str):
                yield text


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
