"""What one key may use, and what it uses now. Pure: the time is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from .policy import BadRequest, Limits, read_effort

OPTIONS = "requests=, tokens_per_minute=, max_tokens=, effort=, models="
REQUEST_RETRY_S = 2.0
"""When to come back if all of a key's requests are under way: nobody knows when one ends. Guess."""

BYTES_PER_TOKEN = 4
"""Guess; text in other scripts has fewer tokens than this says, an image far fewer."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Options of a line in the key file; None is no limit."""

    requests: int | None = None
    """Requests in flight, waiting ones included."""
    tokens_per_minute: int | None = None
    """Prompt and answer together, on average; one minute's worth can be used at once."""
    max_tokens: int | None = None
    """Filled in and clamped like gateway.max_tokens_cap, and never more than that."""
    effort: int | str | None = None
    """For requests that name no effort: a budget, or "none"."""
    models: frozenset[str] | None = None

    def narrow(self, fleet: Limits) -> Limits:
        """The fleet's limits for a request with this key."""
        if self.max_tokens is None and self.effort is None:
            return fleet
        cap = fleet.max_tokens_cap
        if self.max_tokens is not None:
            cap = min(cap or self.max_tokens, self.max_tokens)
        effort = fleet.default_effort if self.effort is None else self.effort
        return replace(fleet, max_tokens_cap=cap, default_effort=effort)

    def words(self) -> list[str]:
        """As in the key file."""
        named = {name: getattr(self, name) for name in ("requests", "tokens_per_minute", "max_tokens", "effort")}
        models = [f"models={','.join(sorted(self.models))}"] if self.models is not None else []
        return [f"{name}={value}" for name, value in named.items() if value is not None] + models

    def allows(self, model: str) -> bool:
        return self.models is None or model in self.models


NO_LIMITS = KeyLimits()


def estimated_tokens(body_bytes: int) -> float:
    """Prompt tokens of a request before the engine has counted them: some 4 bytes each in English and in code."""
    return body_bytes / BYTES_PER_TOKEN


def parse_options(words: Sequence[str]) -> KeyLimits:
    """`requests=4 models=a,b` as words. Raises ValueError, whose text never holds a word: it may be half a key."""
    found: dict[str, int | str | frozenset[str]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or f"{name}=" not in OPTIONS.split(", "):
            raise ValueError(f"something behind its key that is none of {OPTIONS}")
        if name in found:
            raise ValueError(f"{name}= twice")
        if name == "models":
            models = frozenset(filter(None, value.split(",")))
            if not models or any(not model.isprintable() or " " in model for model in models):
                raise ValueError("models= without a name, or with spaces")
            found[name] = models
        elif name == "effort":
            try:
                found[name] = read_effort(value, name)
            except BadRequest:
                raise ValueError("effort= without none, low, high, max or a number from 1 to 100") from None
        else:
            if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value)):
                raise ValueError(f"{name}= without a whole number from 1 to 999999999")
            found[name] = int(value)
    return KeyLimits(**found)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Exceeded:
    """The limit that is used up, by its name in the key file, and when there is room again."""

    limit: str
    allowed: int
    retry_after_s: float


@dataclass(slots=True)
class Meter:
    """What one key uses. Outlives a reload of the key file, so that a reload is no way around a limit."""

    in_flight: int = 0
    owed_tokens: float = 0.0
    """Tokens used and not yet forgiven: a minute's limit is forgiven each minute, steadily."""
    taken: int = 0
    used_tokens: float = 0.0
    """Since the gateway began; for its metrics, as are the next."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    repetitions: int = 0
    leaked_markup: int = 0
    _at: float = -inf

    def enter(self, limits: KeyLimits, now: float) -> Exceeded | None:
        """Counts a request in, or says why not."""
        if limits.requests is not None and self.in_flight >= limits.requests:
            return Exceeded("requests", limits.requests, REQUEST_RETRY_S)
        if limits.tokens_per_minute is not None:
            self._forgive(limits.tokens_per_minute, now)
            over = self.owed_tokens - limits.tokens_per_minute
            if over >= 0:
                # One token's time more: at exactly the limit there is no room yet.
                return Exceeded(
                    "tokens_per_minute", limits.tokens_per_minute, (over + 1) * 60 / limits.tokens_per_minute
                )
        self.in_flight += 1
        self.taken += 1
        return None

    def leave(self) -> None:
        self.in_flight -= 1

    def charge(self, limits: KeyLimits, tokens: float, now: float) -> None:
        """Tokens used; negative corrects an estimate that was too high."""
        self.used_tokens += tokens
        if limits.tokens_per_minute is None:
            self.owed_tokens = 0.0
            return
        self._forgive(limits.tokens_per_minute, now)
        self.owed_tokens = max(0.0, self.owed_tokens + tokens)

    def _forgive(self, tokens_per_minute: int, now: float) -> None:
        if now > self._at:
            if self._at > -inf:
                self.owed_tokens = max(0.0, self.owed_tokens - (now - self._at) * tokens_per_minute / 60)
            self._at = now
