"""Log lines with the shape of SGLang 0.5.23's, so that what reads the one reads the other.

Source: boots of sglang 0.5.23 on CPU at TP1 and TP2, 2026-11-29. Only the texts' shape is the same; the figures in
them are made up, and the first line of every process says so.
"""

from __future__ import annotations

import sys
import time

WHO = "This is the scripted engine, the test double of SGLang: no model is loaded and no figure is measured."
BANNER = f"scripted engine: {WHO}"


class Log:
    """Writes lines as one process of SGLang does: `[2026-11-29 22:27:01 TP1] …`, without TPn when it is alone."""

    def __init__(self, tp_rank: int | None = None) -> None:
        self._suffix = "" if tp_rank is None else f" TP{tp_rank}"

    def __call__(self, text: str) -> None:
        print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{self._suffix}] {text}", file=sys.stderr, flush=True)


def progress(done: int, total: int, elapsed_s: float) -> None:
    """The bar of tqdm: lines end with a carriage return while it moves, as in SGLang's own log."""
    text = f"\rMulti-thread loading shards: {100 * done // total:3d}% Completed | {done}/{total} "
    rate = "?it/s" if done == 0 else f"{done / max(elapsed_s, 1e-3):.2f}it/s"
    print(f"{text}[00:{int(elapsed_s):02d}<?, {rate}]", end="\n" if done == total else "", file=sys.stderr, flush=True)


def peer_lost(address: str) -> str:
    """What a scheduler says when Gloo loses a peer."""
    return (
        "Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "scripted_engine.py", in run_event_loop\n'
        f"RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [{address}]: Connection reset by peer. "
        "This is typically caused by a remote worker hanging or bugs in the application.\n"
    )
