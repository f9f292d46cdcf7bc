"""Progress of long work in bytes: a bar on a terminal, a line every few seconds elsewhere. On standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType

LINE_EVERY_S = 5.0


class Bar:
    """`show(done, total, rate)` as often as you like."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._progress = None
        self._task = None
        self._printed_at_s = 0.0
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

            self._progress = Progress(
                "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
                console=Console(stderr=True),
            )  # fmt: skip

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task(self._what, total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, done: int, total: int, bytes_per_s: float) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total)
            return
        now = time.monotonic()
        if done < total and now - self._printed_at_s < LINE_EVERY_S:
            return
        self._printed_at_s = now
        left_s = (total - done) / bytes_per_s if bytes_per_s > 0 else 0.0
        print(
            f"{self._what}: {100 * done / max(total, 1):.0f} % of {total / 2**20:.1f} MiB, "
            f"{bytes_per_s / 2**20:.0f} MiB/s, {left_s:.0f} s left",
            file=sys.stderr, flush=True,
        )  # fmt: skip
