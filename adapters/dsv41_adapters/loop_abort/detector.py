"""Finds repetition in a growing list of tokens. Knows tokens only; what counts as too much is `evidence.py`'s.

Each token whose last six tokens were seen before is *covered*, with the six. Coverage summed block by block against
an expectation (Page's cumulative sum) marks where a streak of repetition began: text that says something new takes the
sum back to zero. Only a long streak is looked at closer, and each time only after it has grown by a quarter, so that
the cost a token stays constant. Nothing here is random or timed: equal tokens give equal answers on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import eq

NGRAM = 6
"""Shorter ones recur in any text; longer ones miss loops whose copies differ every few words."""
BLOCK = 64
"""Tokens consumed at a time: a step that does not complete a block costs one comparison."""
WINDOW = 16_384
"""How far back a repetition is recognised, in tokens; up to twice this is kept."""
EXPECTED = 0.8
"""Coverage at which a streak neither grows nor shrinks. Code, tables and lists of real values stay below."""
SHORTEST_STREAK = 512

_BASE = 1_000_003
_MASK = (1 << 61) - 1
_OLDEST = pow(_BASE, NGRAM, 1 << 61)


class Kind(StrEnum):
    """How much the copies resemble each other."""

    EXACT = "exact"
    NEAR = "near"
    """One period, with changes: a counter, another word."""
    SHUFFLED = "shuffled"
    """No period, yet nothing new: the same sentences in another order."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """A streak of output that repeats what came before it."""

    start: int
    """First output token of the streak."""
    n_tokens: int
    period_tokens: int
    """Distance between copies; of a shuffled streak, how many different places it has."""
    kind: Kind

    @property
    def n_copies(self) -> float:
        return self.n_tokens / self.period_tokens

    def __str__(self) -> str:
        return (
            f"{self.kind} repetition from output token {self.start}, "
            f"{self.n_copies:.0f} copies of about {self.period_tokens} tokens"
        )


class LoopDetector:
    """One request's output. `feed` it the whole list each time; only what is new is read."""

    __slots__ = (
        "_due", "_hash", "_lags", "_last_match", "_n_read", "_older", "_recent", "_start", "_sum", "next_length"
    )  # fmt: skip

    def __init__(self) -> None:
        self.next_length = BLOCK
        """Shorter outputs need not be fed."""
        self._n_read = 0
        self._hash = 0
        self._recent: dict[int, int] = {}
        self._older: dict[int, int] = {}
        self._last_match = -NGRAM
        self._sum = 0.0
        self._start = 0
        self._lags: dict[int, int] = {}
        self._due = SHORTEST_STREAK

    def feed(self, ids: Sequence[int]) -> tuple[Repetition, ...]:
        """Read whole blocks of `ids`, the request's output so far.

        Gives what a streak that is due to be judged can be taken for: copies that differ in turn are near copies of
        one period, and exact ones of a longer.
        """
        found: tuple[Repetition, ...] = ()
        while self._n_read + BLOCK <= len(ids):
            self._read_block(ids)
            length = self._n_read - self._start
            if self._sum == 0.0:
                self._due = SHORTEST_STREAK
            elif length >= self._due:
                self._due = length + length // 4
                found = self._describe(ids) or found
        self.next_length = self._n_read + BLOCK
        return found

    def _read_block(self, ids: Sequence[int]) -> None:
        first, stop = self._n_read, self._n_read + BLOCK
        rolling, recent, older, lags = self._hash, self._recent, self._older, self._lags
        last_match, covered = self._last_match, 0
        for i in range(first, stop):
            rolling = (rolling * _BASE + ids[i] + 1) & _MASK
            if i >= NGRAM:
                rolling = (rolling - (ids[i - NGRAM] + 1) * _OLDEST) & _MASK
            elif i < NGRAM - 1:
                continue
            before = recent.get(rolling)
            if before is None:
                before = older.get(rolling)
            recent[rolling] = i
            if before is not None:
                gap = i - last_match
                covered += gap if gap < NGRAM else NGRAM
                last_match = i
                lag = i - before
                lags[lag] = lags.get(lag, 0) + 1
        self._hash, self._last_match, self._n_read = rolling, last_match, stop
        if len(recent) >= WINDOW:
            self._older, self._recent = recent, {}
        self._sum = max(0.0, self._sum + min(covered, BLOCK) - EXPECTED * BLOCK)
        if self._sum == 0.0:
            self._start = stop
            lags.clear()

    def _describe(self, ids: Sequence[int]) -> tuple[Repetition, ...]:
        start, stop = self._start, self._n_read
        n_tokens = stop - start
        common = sorted(self._lags.items(), key=lambda item: (-item[1], item[0]))[:8]
        total = sum(self._lags.values())
        # What the streak does now decides; how it began fades.
        self._lags = {lag: count // 2 for lag, count in self._lags.items() if count > 1}
        if not common:
            return ()
        found = []
        period, alike = _most_exact([lag for lag, _ in common], ids, stop, n_tokens)
        if alike >= 0.98:
            found.append(Repetition(start, n_tokens, period, Kind.EXACT))
        near, share = _most_shared(common, total)
        if share >= 0.5 and not (found and near == period):
            found.append(Repetition(start, n_tokens, near, Kind.NEAR))
        return tuple(found) or (Repetition(start, n_tokens, _n_places(ids, start, stop), Kind.SHUFFLED),)


def _most_exact(lags: list[int], ids: Sequence[int], stop: int, n_tokens: int) -> tuple[int, float]:
    """The lag at which the end of the output equals what stood one lag before, and the share that does."""
    best = (lags[0], 0.0)
    for lag in sorted(lags):
        n_compared = min(n_tokens - lag, 4 * lag + 256)
        if n_compared <= 0:
            continue
        here, there = ids[stop - n_compared : stop], ids[stop - n_compared - lag : stop - lag]
        share = sum(map(eq, here, there)) / n_compared
        if share > best[1]:
            best = (lag, share)
    return best


def _most_shared(common: list[tuple[int, int]], total: int) -> tuple[int, float]:
    """The lag around which most matches lie: a longer number moves the copies behind it by a token or two."""
    best = (common[0][0], 0.0)
    for lag, _ in common:
        slack = max(2, lag // 16)
        share = sum(count for other, count in common if abs(other - lag) <= slack) / total
        if share > best[1]:
            best = (lag, share)
    return best


def _n_places(ids: Sequence[int], start: int, stop: int) -> int:
    """How many different stretches of six tokens the streak is made of."""
    ids = ids[max(start, stop - WINDOW) : stop]
    return len(set(zip(*(ids[k:] for k in range(NGRAM)), strict=False)))
