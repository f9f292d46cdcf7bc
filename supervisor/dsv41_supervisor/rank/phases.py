"""Loading judged by progress: phases read from SGLang's own log lines. Pure: lines in, phase out.

Source: texts of sglang 0.5.23, `bootstrap.py:115`, `model_runner.py:1274,1373`, `kv_cache_configurator.py:499`,
`cuda_graph_setup.py:685-788`, `utils/common.py:3684`; each was seen in a boot on 2026-11-29.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from ..settings.engine import StallTimers


class Phase(StrEnum):
    """Phases of loading, in order. A phase is never left backwards."""

    STARTING = "starting"
    RENDEZVOUS = "rendezvous"
    WEIGHTS = "weights"
    POOLS = "pools"
    CAPTURE = "capture"
    WARMUP = "warmup"
    SERVING = "serving"


_ORDER = list(Phase)

# First match wins. Each line is looked at once, so the cost is bounded whatever the engine prints.
_MARKS: tuple[tuple[re.Pattern[str], Phase], ...] = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (r"The server is fired up and ready to roll!", Phase.SERVING),
        (r"Dummy health check server started", Phase.SERVING),
        (r"Application startup complete|Uvicorn running on", Phase.WARMUP),
        (r"Capture .*\b(?:begin|end)\b", Phase.CAPTURE),
        (r"KV Cache is allocated|Memory pool end|DSV4 memory calculation|max_total_num_tokens=", Phase.POOLS),
        (r"Load weight end", Phase.POOLS),
        (r"Load weight begin|loading shards:|Loading safetensors", Phase.WEIGHTS),
        (r"Init parallel ends", Phase.WEIGHTS),
        (r"Init parallel begin|Init torch distributed begin", Phase.RENDEZVOUS),
    )
)
_PERCENT = re.compile(r"(?:loading shards|Loading safetensors[^:]*):\s+(\d{1,3})%")
_CANNOT_LISTEN = re.compile(r"error while attempting to bind on address.*")
# Source: uvicorn's line when its port was taken while the engine loaded. sglang 0.5.23 does not end then: its other
# threads keep the process, and the ranks wait for each other (seen on a CPU, 2026-11-30).
_BOOT_FACTS = re.compile(r"(DSV4 memory calculation: .*)|max_total_num_tokens=(\d+)")


@dataclass(frozen=True, slots=True)
class Progress:
    """What a rank's log has told so far. `mark` changes with every sign of progress; a stall timer watches it."""

    phase: Phase = Phase.STARTING
    fraction: float | None = None
    mark: int = 0
    max_total_tokens: int | None = None
    memory_line: str | None = None
    hopeless: str | None = None
    """Why this engine will never serve, although its process goes on."""

    def feed(self, line: str) -> Progress:
        """The progress after one more line of the log."""
        found = next((phase for pattern, phase in _MARKS if pattern.search(line)), None)
        fact = _BOOT_FACTS.search(line)
        after = self
        if fact is not None and fact[1]:
            after = replace(after, memory_line=fact[1][:1000])
        if fact is not None and fact[2]:
            after = replace(after, max_total_tokens=int(fact[2]))
        if self.hopeless is None and (cannot := _CANNOT_LISTEN.search(line)) is not None:
            after = replace(after, hopeless=f"the engine cannot listen: {cannot[0][:300]}")
        if found is None or _ORDER.index(found) < _ORDER.index(self.phase):
            return after
        percent = _PERCENT.findall(line)
        fraction = min(int(percent[-1]), 100) / 100 if percent else (after.fraction if found is self.phase else None)
        if found is self.phase and fraction == self.fraction and found is not Phase.CAPTURE:
            return after
        return replace(after, phase=found, fraction=fraction, mark=self.mark + 1)


def stall_limit_s(phase: Phase, timers: StallTimers) -> float | None:
    """Longest time without progress in a phase; None when the phase is not a phase of loading."""
    if phase is Phase.SERVING:
        return None
    return float(getattr(timers, f"{phase}_s"))
