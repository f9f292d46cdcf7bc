"""One request's watch: the detector's streaks, judged by their text. No engine in here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .detector import BLOCK, Kind, LoopDetector, Repetition
from .evidence import tokens_needed

Decode = Callable[[Sequence[int]], str]

_UNIT_TOKENS = 2048
_PROMPT_TOKENS = 2048
_TOOL_TOKENS = 65_536

# The engine's V4.1 markers have a space inside, earlier ones have not; both bars occur in text that leaked.
_OPENS = re.compile(r"<[｜|]DSML[｜|]\s*(?:tool_calls|function_calls|calls|invoke|parameter)")
_CLOSES = re.compile(r"</[｜|]DSML[｜|]\s*(?:tool_calls|function_calls|calls)\s*>")


@dataclass(frozen=True, slots=True)
class Loop:
    """A repetition that had more copies than what it repeats, and what was asked for, allow."""

    found: Repetition
    needed_tokens: int
    at: int
    """Output tokens when it was judged."""
    in_tool_call: bool
    """The output is inside a tool call's arguments: stopped here, they are not whole."""

    def __str__(self) -> str:
        where = ", inside a tool call, whose arguments are not whole" if self.in_tool_call else ""
        return f"{self.found}{where}"


class RequestWatch:
    """Feed it the request after each step. Deterministic: every rank comes to the same answer at the same token."""

    __slots__ = ("_base_tokens", "_detector", "n_judged", "next_length", "told")

    def __init__(self, base_tokens: int) -> None:
        self._base_tokens = base_tokens
        self._detector = LoopDetector()
        self.next_length = self._detector.next_length
        self.n_judged = 0
        """How often text had to be decoded: a few times a request that repeats at all."""
        self.told = False
        """Set by the caller: one report a request is enough."""

    def check(self, output_ids: Sequence[int], prompt_ids: Sequence[int], decode: Decode | None) -> Loop | None:
        """None, or the loop the request is in. `decode` None: no tokenizer, so everything counts as most ordinary."""
        if len(output_ids) < self.next_length - BLOCK:  # shorter than what was read: generated anew
            self._detector = LoopDetector()
        found = self._detector.feed(output_ids)
        self.next_length = self._detector.next_length
        if not found or found[0].n_tokens < self._base_tokens:
            return None
        self.n_judged += 1
        prompt = decode(prompt_ids[-_PROMPT_TOKENS:]) if decode is not None else ""
        for repetition in found:
            unit = ""
            if decode is not None:
                n_unit = min(repetition.n_tokens, _UNIT_TOKENS)
                if repetition.kind is not Kind.SHUFFLED:
                    n_unit = min(n_unit, repetition.period_tokens)
                unit = decode(output_ids[len(output_ids) - n_unit :])
            needed = tokens_needed(repetition, unit, prompt, base_tokens=self._base_tokens)
            if repetition.n_tokens >= needed:
                in_call = decode is not None and in_tool_call(decode(output_ids[-_TOOL_TOKENS:]))
                return Loop(repetition, needed, len(output_ids), in_call)
        return None


def in_tool_call(text: str) -> bool:
    """Whether the text ends inside a tool call's markup."""
    opened = max((match.start() for match in _OPENS.finditer(text)), default=-1)
    closed = max((match.start() for match in _CLOSES.finditer(text)), default=-1)
    return opened > closed
