"""The keys' meters: counts each request of a caller in and out, and refuses what is over its limits."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from math import ceil

from .answers import Failure
from .keys import Caller
from .limits import Exceeded, Meter, estimated_tokens
from .observe import Seen
from .refuse import Refuse

_UNANSWERED = frozenset({"error", "engine_lost"})


class Use:
    """One request's share of its key's tokens: an estimate while it runs, then what the engine counted.

    Attributes: `seen`: what is known of its answer, once there is one.
    """

    def __init__(self, charge: Callable[[float], None]) -> None:
        self.seen: Seen | None = None
        self._charge = charge
        self._estimate = 0.0

    def begin(self, body_bytes: int) -> float:
        """Charges what its prompt is likely to have, and gives that."""
        self._estimate = estimated_tokens(body_bytes)
        self._charge(self._estimate)
        return self._estimate

    def end(self) -> None:
        """A client that left before the engine had counted is charged the estimate, and a token for each event that it
        read; one that got no answer, nothing."""
        seen = self.seen or Seen(finish="error")
        tokens: float = (seen.prompt_tokens or 0) + (seen.completion_tokens or 0)
        if not seen.completion_tokens and seen.finish not in _UNANSWERED:
            tokens = (seen.prompt_tokens or self._estimate) + seen.events
        self._charge(tokens - self._estimate)


class Meters:
    """By the name of the key. Names come from the key file alone, so there are never many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.by_name: dict[str, Meter] = {}
        self.refused: Counter[tuple[str, str]] = Counter()
        """By the key's name and the limit's."""
        self._clock = clock

    def check_model(self, caller: Caller, model: str) -> None:
        """Raises Refuse: 403 when the key is for others."""
        if not caller.limits.allows(model):
            self.refused[caller.name, "models"] += 1
            raise Refuse(_other_model(caller, model))

    @contextlib.contextmanager
    def request(self, caller: Caller, model: str) -> Iterator[Use]:
        """Raises Refuse: 403 for another model, 429 with the limit's name and when there is room again."""
        limits = caller.limits
        self.check_model(caller, model)
        meter = self.by_name.setdefault(caller.name, Meter())
        exceeded = meter.enter(limits, self._clock())
        if exceeded is not None:
            self.refused[caller.name, exceeded.limit] += 1
            raise Refuse(_over(caller, exceeded))
        use = Use(lambda tokens: meter.charge(limits, tokens, self._clock()))
        try:
            yield use
        finally:
            use.end()
            meter.leave()
            if use.seen is not None:
                meter.prompt_tokens += use.seen.prompt_tokens or 0
                meter.cached_tokens += use.seen.cached_tokens or 0
                meter.repetitions += use.seen.finish == "repetition"
                meter.leaked_markup += use.seen.leaked


def _over(caller: Caller, exceeded: Exceeded) -> Failure:
    again_s = max(1, ceil(exceeded.retry_after_s))
    message = (
        f"The key {caller.name} is at its limit {exceeded.limit}={exceeded.allowed}. "
        f"Try again in {again_s} s, or ask the operator for a higher limit."
    )
    return Failure(
        429, message, "rate_limit_error", "rate_limit_exceeded", exceeded.limit, exceeded.retry_after_s
    )


def _other_model(caller: Caller, model: str) -> Failure:
    allowed = ", ".join(sorted(caller.limits.models or ()))
    message = f"The key {caller.name} is for {allowed}; this fleet serves {model}. Ask the operator."
    return Failure(403, message, "permission_error", "model_not_allowed", "model")
