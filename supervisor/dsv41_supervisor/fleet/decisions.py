"""The audit log: every decision about the fleet with its reason, one JSON object a line, bounded."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ..journal import log

MAX_BYTES = 1 << 20
"""The file starts anew beyond this; the one before is kept as .1. Some five thousand decisions."""


class Decisions:
    """Appends to `audit.log` in the state directory; a drive that is full is named in the log and stops nothing."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "audit.log"

    def append(self, decision: str, why: str | None = None, **about: Any) -> None:
        line = {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "decision": decision, "why": why}
        line |= {name: value for name, value in about.items() if value is not None}
        try:
            if self._path.exists() and self._path.stat().st_size > MAX_BYTES:
                self._path.replace(self._path.with_suffix(".log.1"))
            with self._path.open("a") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            log.warning("cannot write %s: %s", self._path, error.strerror)

    def last(self, n_lines: int) -> list[dict[str, Any]]:
        """The newest decisions, oldest of them first. A line that is torn or foreign is left out."""
        lines: list[str] = []
        for path in (self._path.with_suffix(".log.1"), self._path):
            try:
                lines += path.read_text(errors="replace").splitlines()
            except OSError:
                continue
        found = []
        for line in lines[-n_lines:]:
            try:
                decision = json.loads(line)
            except ValueError:
                continue
            if isinstance(decision, dict):
                found.append(decision)
        return found
