"""What the scripted engine is told to do: a JSON file named by DSV41_SCRIPT, read again whenever it changes.

    {"all": {"tokens_per_s": 50}, "ranks": {"1": {"die_at": "weights"}}}

A rank's own entry goes over `all`. An unknown key or value stops the engine at its start; in a running engine the
broken file is reported and the behaviour before it is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

PHASES = ("starting", "rendezvous", "weights", "pools", "capture", "warmup", "serving")
_PHASE_S = {"starting": 0.05, "weights": 0.2, "pools": 0.05, "capture": 0.0, "warmup": 0.05}


class ScriptRefused(Exception):
    """The script holds something that is not understood; the message names it."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one rank behaves. Defaults: a healthy engine that is ready in about a second."""

    phase_s: dict[str, float] = field(default_factory=dict)
    """Seconds that each phase takes, over the defaults. The rendezvous takes as long as the last rank."""
    tokens_per_s: float = 200.0
    die_at: str | None = None
    """Phase in which the scheduler kills itself (SIGKILL), as the OOM killer would."""
    die_after_tokens: int | None = None
    """Tokens of this boot after which it kills itself: a death in the middle of a stream."""
    exit_at: str | None = None
    """Phase in which the launcher exits with `exit_code`."""
    exit_code: int = 1
    hang_at: str | None = None
    """Phase from which nothing moves any more: no line, no step, no answer from the scheduler; the processes live."""
    lie: bool = False
    """A lost peer changes nothing: /ready and /health stay 200, requests are taken, and no token ever comes."""
    stall_tokens: bool = False
    """Requests run and no token moves, until it is false again."""
    peer_loss_s: float | None = 0.3
    """From the loss of a peer to the end of this rank. null: it hangs as NCCL does, and never ends by itself."""
    crash_s: float = 0.2
    """From the death of a scheduler to the end of its launcher; 4 to 7 s with the real one."""
    stop_s: float = 0.1
    """From SIGTERM of an idle head to the end of all ranks; up to 6 s with the real one."""
    ignore_sigterm: bool = False
    refuse_arming: str | None = None
    """Reason with which every adapter refuses; the engine exits with status 78."""


class Script:
    """The behaviour of one rank as the file says now."""

    def __init__(self, rank: int, path: Path | None) -> None:
        self._rank = rank
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._behaviour = Behaviour()
        if path is not None and path.exists():
            self._read()

    @classmethod
    def from_environment(cls, rank: int) -> Script:
        name = os.environ.get("DSV41_SCRIPT")
        return cls(rank, Path(name) if name else None)

    @property
    def now(self) -> Behaviour:
        """The behaviour to follow. One stat a call."""
        if self._path is not None:
            try:
                self._read()
            except ScriptRefused as error:
                print(f"scripted engine: {error}; keeping what was read before", file=sys.stderr, flush=True)
        return self._behaviour

    def phase_s(self, phase: str) -> float:
        return float(self.now.phase_s.get(phase, _PHASE_S.get(phase, 0.0)))

    def _read(self) -> None:
        assert self._path is not None
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return
        seen = status.st_mtime_ns, status.st_size
        if seen == self._seen:
            return
        self._seen = seen
        with contextlib.suppress(FileNotFoundError):
            self._behaviour = parse(self._path.read_text(), self._rank, str(self._path))


def parse(text: str, rank: int, source: str = "script") -> Behaviour:
    """The behaviour of one rank. Raises ScriptRefused naming the wrong key or value."""
    try:
        raw = json.loads(text)
        if not isinstance(raw, dict) or not raw.keys() <= {"all", "ranks"}:
            raise ValueError('expected an object with "all" and "ranks"')
        merged: dict[str, Any] = {**raw.get("all", {}), **raw.get("ranks", {}).get(str(rank), {})}
    except (ValueError, AttributeError, TypeError) as error:
        raise ScriptRefused(f"{source}: {error}") from None
    known = {f.name for f in fields(Behaviour)}
    if unknown := sorted(merged.keys() - known):
        raise ScriptRefused(f"{source}: {unknown} is not one of {sorted(known)}")
    for key in ("die_at", "exit_at", "hang_at"):
        if merged.get(key) not in (None, *PHASES):
            raise ScriptRefused(f"{source}: {key} is {merged[key]!r}, expected one of {list(PHASES)}")
    if unknown := sorted(set(merged.get("phase_s", {})) - set(PHASES)):
        raise ScriptRefused(f"{source}: phase_s names {unknown}, expected some of {list(PHASES)}")
    return Behaviour(**merged)
