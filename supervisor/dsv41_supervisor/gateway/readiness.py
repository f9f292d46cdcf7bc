"""Whether the fleet serves, as the head's supervisor says: one value, kept current by a long poll."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from time import monotonic
from typing import Any

import aiohttp

from ..journal import log

DEFAULT_RETRY_AFTER_S = 5.0
"""When the supervisor has no estimate. Guess."""

MAX_ANSWER_BYTES = 1 << 16
_MAX_RETRY_AFTER_S = 86_400.0
_NO_ENGINE = frozenset({"recovering", "failed"})
"""States in which nobody answers for the boot named. `down` and `starting` with an unchanged boot are a
supervisor that has just restarted and is about to adopt its ranks; a real start has another boot."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """One answer of `/fleet/readiness`. `ready`: new requests may go to `upstream`."""

    ready: bool
    reason: str | None
    state: str = "unknown"
    boot: str | None = None
    upstream: str | None = None
    retry_after_s: float = DEFAULT_RETRY_AFTER_S
    detail: str | None = None
    version: int | None = None

    @classmethod
    def from_json(cls, raw: Any) -> Readiness:
        """Raises ValueError when it is not what the supervisor promises."""
        if not isinstance(raw, dict):
            raise ValueError("not an object")
        ready, upstream, boot, version = (raw.get(name) for name in ("ready", "upstream", "boot", "version"))
        retry_after_s = raw.get("retry_after_s")
        if not isinstance(ready, bool) or not isinstance(version, int):
            raise ValueError("no ready or no version")
        if ready and not (
            isinstance(upstream, str) and upstream.startswith("http://") and isinstance(boot, str)
        ):
            raise ValueError("ready without a boot and an http upstream")
        return cls(
            ready=ready,
            reason=_text(raw.get("reason")) or (None if ready else "the supervisor gave no reason"),
            state=_text(raw.get("state")) or "unknown",
            boot=_text(boot),
            upstream=upstream.rstrip("/") if isinstance(upstream, str) else None,
            retry_after_s=float(retry_after_s)
            if isinstance(retry_after_s, (int, float)) and 0 <= retry_after_s <= _MAX_RETRY_AFTER_S
            else DEFAULT_RETRY_AFTER_S,
            detail=_text(raw.get("detail")),
            version=version,
        )

    def serves(self, boot: str | None) -> bool:
        """Whether requests running on that boot may still be answered; they are while it drains."""
        return self.boot == boot and self.state not in _NO_ENGINE

    @property
    def sentence(self) -> str:
        """What is happening, for the client."""
        if self.ready:
            return f"The fleet is {self.state}."
        more = f" ({self.detail})" if self.detail and self.detail != self.reason else ""
        again_s = max(1, ceil(self.retry_after_s))
        return f"The fleet is not ready ({self.state}): {self.reason}{more}. Try again in {again_s} s."


def _text(value: object) -> str | None:
    return value.strip().rstrip(".") if isinstance(value, str) and value.strip() else None


class Watcher:
    """Asks the head's supervisor and holds what it last said.

    Silence is bounded: each poll is answered within half of `peer_timeout_s`, or at once when something
    changes, so a supervisor that hangs or is gone is noticed `peer_timeout_s` after its last answer. Then new
    requests are refused; running ones go on, because nothing says that their engine is gone.
    """

    def __init__(
        self,
        url: str,
        fleet: str,
        fleet_key: str,
        peer_timeout_s: float,
        on_change: Callable[[Readiness], None] = lambda _: None,
    ) -> None:
        self.current = Readiness(False, "the head's supervisor has not answered yet")
        self._url = f"{url}/fleet/readiness"
        self._headers = {"Authorization": f"Bearer {fleet_key}", "X-DSV41-Fleet": fleet}
        self._peer_timeout_s = peer_timeout_s
        self._on_change = on_change
        self._answered_at = monotonic()

    async def run(self) -> None:
        """Until cancelled."""
        timeout = aiohttp.ClientTimeout(total=self._peer_timeout_s)
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(timeout=timeout, headers=self._headers, cookie_jar=jar) as session:
            since: int | None = None
            while True:
                asked_at = monotonic()
                problem, answer = await self._ask(session, since)
                if answer is not None:
                    self._answered_at = monotonic()
                    unchanged = answer.version == since
                    since = answer.version
                    self._take(answer)
                    if unchanged and monotonic() - asked_at < self._peer_timeout_s / 4:
                        await asyncio.sleep(0.2)  # it does not wait as asked: do not spin
                    continue
                since = None
                silent_s = monotonic() - self._answered_at
                if silent_s >= self._peer_timeout_s:
                    self._take(self._lost(problem))
                left_s = self._peer_timeout_s - silent_s
                await asyncio.sleep(min(0.25, left_s) if left_s > 0 else 0.25)

    async def _ask(self, session: aiohttp.ClientSession, since: int | None) -> tuple[str, Readiness | None]:
        """What went wrong, or the answer."""
        # Without `since` the supervisor answers at once.
        params = {} if since is None else {"since": str(since), "wait_s": f"{self._peer_timeout_s / 2:.3f}"}
        try:
            async with session.get(self._url, params=params, allow_redirects=False) as response:
                body = await response.content.read(MAX_ANSWER_BYTES)
                if response.status == 401:
                    return "it refuses our fleet key: fleet.key_file differs between the two", None
                if response.status == 409:
                    return "it belongs to another fleet: fleet.name differs between the two", None
                if response.status != 200:
                    return f"it answers {response.status}", None
                return "", Readiness.from_json(json.loads(body))
        except TimeoutError:
            return "no answer", None
        except (aiohttp.ClientError, OSError) as error:
            number = getattr(error, "errno", None)
            return os.strerror(number) if number else type(error).__name__, None
        except (ValueError, RecursionError) as error:
            return f"its answer is not understood ({error})", None

    def _lost(self, problem: str) -> Readiness:
        return replace(
            self.current,
            ready=False,
            state="unknown",
            reason=f"the head's supervisor has been silent for {self._peer_timeout_s:g} s ({problem})",
            retry_after_s=DEFAULT_RETRY_AFTER_S,
            detail=None,
        )

    def _take(self, new: Readiness) -> None:
        old, self.current = self.current, new
        if old == new:
            return
        if old.ready != new.ready:
            if new.ready:
                log.info("the fleet serves (boot %s)", new.boot)
            else:
                log.warning("new requests are answered 503: %s", new.reason)
        self._on_change(new)
