"""How much repetition is too much: it depends on what is repeated, and on what was asked for.

A paragraph of prose that comes a tenth time is a loop. Rows of zeros, rulers, closing brackets, records that differ in
a number are what much good output looks like, so they need far more; and who asks for fifty copies gets them. Pure
functions of text. The numbers are this module's own, chosen on the corpus of tests/adapters/loop_corpus.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from .detector import Kind, Repetition

MOST_ASKED_COPIES = 5_000
MOST_EVIDENCE_TOKENS = 65_536

_KIND_FACTOR = {Kind.EXACT: 1.0, Kind.NEAR: 3.0, Kind.SHUFFLED: 6.0}
_LEAST_COPIES = {Kind.EXACT: 6, Kind.NEAR: 9, Kind.SHUFFLED: 12}
"""Long texts are drafted, quoted and revised a few times in good faith."""
_LONG_TOKENS = 2048
_LEAST_LONG_COPIES = 4
"""Nobody revises a long text without changing it."""
_ORDINARY = 24.0
_TINY_FACTOR = {1: 3.0, 2: 8.0, 3: 16.0, 4: 16.0}
"""By period in tokens: one token for ever is the commonest collapse, and little that is wanted looks like it."""
_PROSE_WORDS = 12

_WORD = re.compile(r"[^\W\d_]{3,}")
_CJK = re.compile(r"[぀-ヿ㐀-䶿一-鿿가-힯]")
_NUMBER_WORDS = {
    "dozen": 12, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80,
    "ninety": 90, "hundred": 100, "thousand": 1000, "hundreds": 500, "thousands": 5000, "zwanzig": 20, "fünfzig": 50,
    "hundert": 100, "tausend": 1000, "vingt": 20, "cinquante": 50, "cent": 100, "mille": 1000, "cincuenta": 50,
    "cien": 100, "mil": 1000,
}  # fmt: skip
_PRODUCT = re.compile(r"(\d{1,4})\s*(?:[x×*]|by)\s*(\d{1,4})", re.IGNORECASE)
# A number and, within three words, something that can be counted: "50 times", "200 short test cases", "100遍".
_COUNTED = re.compile(
    r"(?<![\d.,A-Za-z_])(\d{1,3}(?:[,_]\d{3})+|\d{1,9})[\s-]*"
    r"(?:(?:[^\W\d_]+[\s-]+){0,3}?(?!this\b|does\b)[^\W\d_]{3,}s\b"
    r"|mal\b|fois\b|veces\b|[次遍行个份条回度番])",
    re.IGNORECASE,
)
# Before a number that only names something, and before a year. "error 50 times" and "port 20 functions" are counts.
_NAMES = re.compile(r"(?:\b(?:https?|pull request|pr)\s*|#)$", re.IGNORECASE)
_YEAR_BEFORE = re.compile(r"\b(?:the|in|of|since|from|year|for|on|im|der|die|das|aus|von)\s+$", re.IGNORECASE)
_UP_TO = re.compile(r"\b(?:to|through|until|bis|jusqu'à|hasta)\s+(\d{1,6})\b", re.IGNORECASE)
_REPEAT = re.compile(
    r"\b(?:repeat\w*|over and over|again and again|forever|endless\w*|as (?:many|long) as"
    r"|keep (?:going|writing|printing)|wiederhol\w*|immer wieder|répèt\w*|répét\w*|repit\w*|copies|a lot of"
    r"|fill(?:ed|er)?)\b|重复|一直|繰り返",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the prompt says about repetition."""

    n_copies: int
    """The largest count it names; 0 when it names none."""
    repeat: bool
    """It asks for repetition without a number."""

    @classmethod
    def by(cls, prompt: str) -> Asked:
        """From the end of the prompt: the last turn in which somebody asked for something."""
        last_turn = _request(prompt)[-6000:]
        counts = [n for found in _COUNTED.finditer(last_turn) if (n := _counted(found)) is not None]
        counts += [int(n) for n in _UP_TO.findall(last_turn)]
        counts += [int(a) * int(b) for a, b in _PRODUCT.findall(last_turn)]
        counts += [n for word, n in _NUMBER_WORDS.items() if re.search(rf"\b{word}\b", last_turn, re.IGNORECASE)]
        return cls(
            n_copies=max((min(n, MOST_ASKED_COPIES) for n in counts), default=0),
            repeat=bool(_REPEAT.search(last_turn)),
        )


_TURN = re.compile(r"<[｜|]User[｜|]>")
_ANSWER = re.compile(r"<[｜|]Assistant[｜|]>.*?(?=<[｜|]System[｜|]>|$)", re.DOTALL)
_RESULT = re.compile(r"<tool_result>.*?(?:</tool_result>|$)", re.DOTALL)


def _counted(found: re.Match[str]) -> int | None:
    """How many; None where the number is a name or a year, not a count."""
    number, before = found[1], found.string[max(0, found.start() - 40) : found.start()]
    n = int(re.sub("[,_]", "", number))
    is_year = len(number) == 4 and 1900 < n < 2100 and n % 100 and _YEAR_BEFORE.search(before)
    return None if is_year or _NAMES.search(before) else n


def _request(prompt: str) -> str:
    """The last turn that is more than results of tools: `3999 tests passed` is nothing that anybody asked for."""
    for turn in reversed(_TURN.split(prompt)):
        said = _RESULT.sub(" ", _ANSWER.sub(" ", turn))
        said = said.rpartition("</tool_result>")[2]  # of one that began before the end of the prompt that is looked at
        if said.strip():
            return said
    return ""


def ordinariness(unit: str) -> float:
    """1 for prose of a dozen different words, up to 24 for signs and digits alone."""
    visible = [c for c in unit if not c.isspace()]
    if not visible:
        return _ORDINARY
    n_words = len({word.lower() for word in _WORD.findall(_CJK.sub(" ", unit))}) + len(set(_CJK.findall(unit))) / 2
    signs = sum(not c.isalpha() for c in visible) / len(visible)
    by_words = min(8.0, max(1.0, _PROSE_WORDS / n_words)) if n_words else _ORDINARY
    by_signs = 1.0 + 3.0 * min(1.0, max(0.0, (signs - 0.12) / 0.13))
    return min(_ORDINARY, by_words * by_signs)


def tokens_needed(found: Repetition, unit: str, prompt: str, *, base_tokens: int) -> int:
    """Tokens the streak must have before it is a loop.

    `unit` is the text of one copy (of a shuffled streak: of its end), `prompt` the end of the prompt; `base_tokens`
    what the plainest case needs: exact copies of prose that nobody asked for.
    """
    factor = _KIND_FACTOR[found.kind] * ordinariness(unit)
    least_copies = _LEAST_COPIES[found.kind]
    if found.kind is Kind.EXACT:
        factor = min(factor, _TINY_FACTOR.get(found.period_tokens, factor))
        if found.period_tokens >= _LONG_TOKENS:
            least_copies = _LEAST_LONG_COPIES
    needed = max(base_tokens * min(factor, 40.0), least_copies * found.period_tokens)
    asked = Asked.by(prompt)
    if asked.n_copies:
        needed = max(needed, 1.5 * asked.n_copies * max(found.period_tokens, 4) + base_tokens)
    if asked.repeat or _given(unit, prompt):
        needed *= 4
    return min(math.ceil(needed), MOST_EVIDENCE_TOKENS)


def _given(unit: str, prompt: str) -> bool:
    """The prompt holds what is repeated: a middle piece, since a copy may be cut anywhere."""
    text = " ".join(unit.split())
    piece = text[len(text) // 4 : len(text) // 4 + 40]
    return len(piece) >= 12 and piece in " ".join(prompt.split())
