"""How far a long piece of work is, on standard error: a live table on a terminal, otherwise a line for each change.

Standard output stays clean, so that `--json` can have it. Times of all stages are kept for the report.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

LINE_EVERY_S = 10.0
"""Without a terminal: a stage whose figures move, and nothing else, says so this often."""


@dataclass(slots=True)
class Row:
    """One line of the table: a stage, or a node within it."""

    name: str
    began_s: float
    node: str | None = None
    text: str = ""
    fraction: float | None = None
    quiet: bool = False
    finished: bool = False
    said: tuple[str, float] = field(default=("", -1e9))
    """Kind of the last line and when, for the plain output."""


class Stage:
    """Handle of a stage that runs. `finished` turns true when its block is left, also by cancellation."""

    def __init__(self, progress: Progress, row: Row) -> None:
        self._progress = progress
        self._row = row

    @property
    def finished(self) -> bool:
        return self._row.finished

    def update(self, text: str, fraction: float | None = None) -> None:
        """What it does now, and how much of it is done (0 to 1) when that is known."""
        self._progress._update(self._row, text, fraction)

    def finish(self, outcome: str = "done") -> None:
        """End it before its block does; safe to repeat."""
        self._progress._finish(self._row, outcome)


class _Unfailing:
    """An output that may go away: a terminal that is closed must not keep the demo from stopping in order."""

    def __init__(self, out: IO[str]) -> None:
        self._to = out

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._to.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._to.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._to, name)


class Progress:
    """Shows stages. Use as a context manager; every method may be called from any thread.

    Attributes: `took_s` seconds of each finished stage by name (the slowest node where a stage ran on several).
    """

    def __init__(self, out: IO[str] | None = None, live: bool | None = None) -> None:
        self.took_s: dict[str, float] = {}
        out = out or sys.stderr
        self._is_live = out.isatty() if live is None else live
        self._out = cast(IO[str], _Unfailing(out))
        self._began_s = time.monotonic()
        self._lock = threading.RLock()
        self._rows: list[Row] = []
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._rows.clear()
            self._show()

    @property
    def current(self) -> Stage | None:
        """The stage begun last that still runs."""
        with self._lock:
            rows = [row for row in self._rows if row.node is None]
            return Stage(self, rows[-1]) if rows else None

    @contextlib.contextmanager
    def stage(self, name: str, node: str | None = None, *, quiet: bool = False) -> Iterator[Stage]:
        """A stage from here to the end of the block. `quiet`: nothing is drawn meanwhile; the caller writes itself."""
        row = Row(name, time.monotonic(), node, quiet=quiet)
        with self._lock:
            self._rows.append(row)
            self._show(row)
        try:
            yield Stage(self, row)
        except Exception:
            self._finish(row, "failed")
            raise
        except BaseException:
            self._finish(row, "stopped")
            raise
        self._finish(row, "done")

    def node(self, name: str, text: str, fraction: float | None = None) -> None:
        """What a node does now, as a row of its own below the stage that runs."""
        with self._lock:
            row = next((row for row in self._rows if row.node == name), None)
            if row is None:
                stage = self._rows[-1].name if self._rows else ""
                row = Row(stage, time.monotonic(), name)
                self._rows.append(row)
            self._update(row, text, fraction)

    def update(self, text: str, fraction: float | None = None) -> None:
        """Like `Stage.update`, of the stage that runs."""
        if (stage := self.current) is not None:
            stage.update(text, fraction)

    def say(self, text: str) -> None:
        """One line that stays."""
        with self._lock:
            if self._live is not None:
                self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                print(text, file=self._out, flush=True)

    # -- private -------------------------------------------------------------------------------------------------

    def _update(self, row: Row, text: str, fraction: float | None) -> None:
        with self._lock:
            if row.finished:
                return
            row.text, row.fraction = text, None if fraction is None else min(max(fraction, 0.0), 1.0)
            self._show(row)

    def _finish(self, row: Row, outcome: str) -> None:
        with self._lock:
            if row.finished:
                return
            row.finished = True
            took_s = time.monotonic() - row.began_s
            self.took_s[row.name] = max(took_s, self.took_s.get(row.name, 0.0) if row.node else 0.0)
            where = f" on {row.node}" if row.node else ""
            if not row.quiet:
                self.say(f"{row.name}{where}: {outcome} after {took_s:.1f} s")
            # Rows of nodes belong to the stage that ends.
            self._rows = [r for r in self._rows if r is not row and (row.node or r.node is None or r.name != row.name)]
            self._show()

    def _show(self, row: Row | None = None) -> None:
        if self._is_live:
            self._draw()
        elif row is not None and not row.quiet and (row.text or row.fraction is not None):
            self._line(row)

    def _line(self, row: Row) -> None:
        """A line when more than a figure or what follows a colon has changed, or when it has been a while."""
        kind = re.sub(r"\d+([.,]\d+)?", "#", row.text.partition(": ")[0])
        said, at_s = row.said
        now_s = time.monotonic()
        if kind == said and now_s - at_s < LINE_EVERY_S:
            return
        row.said = kind, now_s
        done = "" if row.fraction is None else f" ({row.fraction:.0%})"
        print(f"{now_s - self._began_s:6.1f} s  {row.node or row.name}: {row.text}{done}", file=self._out, flush=True)

    def _draw(self) -> None:
        wanted = bool(self._rows) and not any(row.quiet for row in self._rows)
        if not wanted and self._live is not None:
            self._live.stop()
            self._live = None
        if not wanted:
            return
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._out, force_terminal=True)
            # Rich draws from a thread of its own, so that the seconds move while nothing else does.
            self._live = Live(
                console=console, get_renderable=self._table, refresh_per_second=4, transient=True,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._live.start()

    def _table(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        # Called by rich's thread with rich's lock held: taking ours here could wait for each other for ever.
        for row in list(self._rows):
            elapsed = f"{time.monotonic() - row.began_s:.0f} s"
            bar: Any = "" if row.fraction is None else ProgressBar(total=1.0, completed=row.fraction, width=24)
            percent = "" if row.fraction is None else f"{row.fraction:.0%}"
            name = f"  {row.node}" if row.node else row.name
            table.add_row(Text(name, style="bold"), Text(row.text), bar, percent, Text(elapsed, style="dim"))
        return table
