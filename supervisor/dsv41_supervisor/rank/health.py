"""Readiness of one rank, each time with the reason why not. Never SGLang's /health alone: it stays 200 beside a dead
worker.

The judge is pure; `EngineProbe` is the only part that talks to the engine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import aiohttp
from dsv41_adapters.adapter import Adapter
from dsv41_adapters.report import ArmedReport

CANARY = {"prompt": "1", "max_tokens": 1, "temperature": 0}
# realtime_tokens_total moves with every decode step and prefill chunk; generation_tokens_total only when a request ends
# (sglang 0.5.23, metrics_reporter.py report_decode_stats, metrics_collector.py:2110).
_METRIC = re.compile(rb"^(sglang:(?:num_running_reqs|num_queue_reqs|realtime_tokens_total))(?:\{[^}]*\})? (\S+)", re.M)


@dataclass(frozen=True, slots=True)
class Arming:
    """What the processes of one rank say about the adapters asked for."""

    states: dict[str, str]
    refused: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def reason(self) -> str | None:
        """Why this rank is not armed as asked; None when it is."""
        if self.refused:
            return "; ".join(self.refused)
        return f"not armed yet: {', '.join(self.missing)}" if self.missing else None


def judge_arming(asked: Iterable[str], specs: Mapping[str, Adapter], reports: Iterable[ArmedReport]) -> Arming:
    """Asked for = armed, in every kind of process that should have it; anything refused anywhere is a refusal."""
    reports = list(reports)
    states: dict[str, str] = {}
    refused: list[str] = []
    missing: list[str] = []
    for report in reports:
        for name, said in report.adapters.items():
            if said.state == "refused":
                line = f"adapter {name} refused in the {report.role}: {said.reason}"
                if line not in refused:
                    refused.append(line)
    for name in asked:
        seen = {r.role: r.adapters[name].state for r in reports if name in r.adapters}
        for role in sorted(specs[name].processes):
            if seen.get(role) not in ("armed", "engaged"):
                missing.append(f"{name} in the {role}")
        states[name] = (
            "refused" if "refused" in seen.values() else "engaged" if "engaged" in seen.values()
            else "armed" if "armed" in seen.values() else "off"
        )  # fmt: skip
    return Arming(states, tuple(refused), tuple(missing))


@dataclass(frozen=True, slots=True)
class Load:
    """What the head's engine is doing. Tokens are prefilled and decoded ones since the engine's start."""

    n_running: int
    n_queued: int
    n_tokens: int
    at_s: float

    def moved(self, before: Load | None) -> bool:
        return before is not None and self.n_tokens != before.n_tokens

    def over(self, before: Load | None) -> dict[str, float]:
        """Requests now, and tokens a second since the look before."""
        passed_s = self.at_s - before.at_s if before is not None else 0.0
        n_tokens = self.n_tokens - before.n_tokens if before is not None else 0
        rate = max(0.0, n_tokens / passed_s) if passed_s > 0 else 0.0
        return {"n_running": self.n_running, "n_queued": self.n_queued, "tokens_per_s": round(rate, 2)}


class Movement:
    """Requests running ⇒ tokens moved in the last `limit_s` seconds. Pure: times come with the loads."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._tokens = -1
        self._moved_at_s: float | None = None

    def feed(self, load: Load) -> str | None:
        """The reason for a failure, or None."""
        if load.n_running == 0 or load.n_tokens != self._tokens or self._moved_at_s is None:
            self._tokens, self._moved_at_s = load.n_tokens, load.at_s
            return None
        still_s = load.at_s - self._moved_at_s
        if still_s > self._limit_s:
            return f"{load.n_running} requests running and no token moved for {still_s:.0f} s"
        return None


class EngineProbe:
    """Questions to this node's engine, on loopback; each bounded."""

    def __init__(self, port: int, model: str) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self._model = model
        self._session: aiohttp.ClientSession | None = None

    async def ready(self) -> str | None:
        """None when /ready says 200; else why not."""
        try:
            async with self._client().get(f"{self._base}/ready", timeout=aiohttp.ClientTimeout(total=5)) as answer:
                return None if answer.status == 200 else f"the engine's /ready says {answer.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"the engine does not answer on {self._base} ({type(error).__name__})"

    async def canary(self, timeout_s: float) -> str | None:
        """Ask for one token through all ranks. None when it came back; else why not."""
        try:
            async with self._client().post(
                f"{self._base}/v1/completions",
                json=CANARY | {"model": self._model},
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as answer:
                if answer.status != 200:
                    return f"the one-token canary got status {answer.status}"
                body = await answer.json(content_type=None)
                if body["usage"]["completion_tokens"] < 1:
                    return "the one-token canary came back without a token"
                return None
        except TimeoutError:
            return f"the one-token canary did not come back within {timeout_s:g} s"
        except (aiohttp.ClientError, ValueError, KeyError, TypeError) as error:
            return f"the one-token canary failed ({type(error).__name__})"

    async def load(self) -> Load | None:
        """Running requests and tokens so far, from the engine's metrics; None when they cannot be read."""
        try:
            async with self._client().get(f"{self._base}/metrics/", timeout=aiohttp.ClientTimeout(total=5)) as answer:
                if answer.status != 200:
                    return None
                sums: dict[bytes, float] = {}
                for name, value in _METRIC.findall(await answer.read()):
                    sums[name] = sums.get(name, 0.0) + float(value)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
        return Load(
            int(sums.get(b"sglang:num_running_reqs", 0)),
            int(sums.get(b"sglang:num_queue_reqs", 0)),
            int(sums.get(b"sglang:realtime_tokens_total", 0)),
            time.monotonic(),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession()
        return self._session
