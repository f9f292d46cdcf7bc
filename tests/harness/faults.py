"""What a fault did, in figures: read off the head's timeline, and written down when DSV41_FAULT_REPORT names a file."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

NOTICED = re.compile(r"^(lost: |boot failed: )")
STOPPED = re.compile(r"^(all ranks stopped|the boot failed and is not tried again|every rank is gone)")
SERVING = re.compile(r"^(serving|adopted boot)")


class Fault:
    """One fault that was injected. Make it right before the injection; `report` when its end was seen.

    `sees` is what the user sees and `journal` the line for the operator, in the words of the test's docstring.
    """

    def __init__(self, fault: str, *, sees: str, journal: str) -> None:
        self._row: dict[str, Any] = {"fault": fault, "sees": sees, "journal": journal}
        self._began_wall_s, self._began_s = time.time(), time.monotonic()

    def mark(self, what: str) -> float:
        """Now is when it was `noticed`, `stopped` or `serving`; returns the seconds since the injection."""
        seconds = time.monotonic() - self._began_s
        self._row[f"{what}_s"] = round(seconds, 2)
        return seconds

    def read(self, status: dict[str, Any]) -> dict[str, float]:
        """Take the times from the head's timeline: the first of each kind after the injection, in order."""
        found: dict[str, float] = {}
        after = self._began_wall_s - 0.01
        for name, pattern in (("noticed", NOTICED), ("stopped", STOPPED), ("serving", SERVING)):
            times = [e["at"] for e in status["timeline"] if e["at"] >= after and pattern.match(e["what"])]
            if times:
                after = min(times)
                found[name] = after - self._began_wall_s
                self._row[f"{name}_s"] = round(max(0.0, found[name]), 2)
        return found

    def report(self, status: dict[str, Any] | None = None) -> None:
        """Write the row. One line, so that several processes may append to the same file."""
        if status is not None:
            self.read(status)
        name = os.environ.get("DSV41_FAULT_REPORT")
        if name:
            test = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]
            with Path(name).open("a") as file:
                file.write(json.dumps(self._row | {"test": test}) + "\n")


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one line a fault; of several runs of the same fault the slowest figure."""
    faults: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        faults.setdefault(row["fault"], []).append(row)
    lines = [
        "| fault | runs | noticed s | stopped s | serving again s | the user sees | the operator's line |",
        "|---|---|---|---|---|---|---|",
    ]
    for fault, runs in faults.items():
        figures = []
        for name in ("noticed_s", "stopped_s", "serving_s"):
            times = [run[name] for run in runs if name in run]
            figures.append(f"{max(times):.2f}" if times else "-")
        cells = [fault, str(len(runs)), *figures, runs[0]["sees"], runs[0]["journal"]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def main(path: str) -> None:
    print(table([json.loads(line) for line in Path(path).read_text().splitlines()]))


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
