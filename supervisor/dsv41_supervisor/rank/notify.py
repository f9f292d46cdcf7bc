"""sd_notify(3) in a few lines: READY, STATUS, WATCHDOG, STOPPING. Does nothing when systemd did not start us."""

from __future__ import annotations

import contextlib
import os
import socket

WATCHDOG_BEATS = 3
"""Beats within one WatchdogSec=: one that comes late on a loaded machine must not kill."""
MAX_STATUS_CHARACTERS = 300


def notify(*assignments: str) -> None:
    """Tell systemd, such as notify("READY=1", "STATUS=serving"). Source: sd_notify(3), datagram protocol.

    A manager that does not listen (it is executing itself anew) loses the message; the next one tells it again.
    """
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    lines = [" ".join(assignment.splitlines())[:MAX_STATUS_CHARACTERS] for assignment in assignments]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock,
    ):
        sock.sendto("\n".join(lines).encode(), address)


def watchdog_beat_s() -> float | None:
    """Seconds between two WATCHDOG=1, from the unit's WatchdogSec=; None when systemd does not watch this process."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        watchdog_s = int(os.environ["WATCHDOG_USEC"]) / 1e6
    except (KeyError, ValueError):
        return None
    return watchdog_s / WATCHDOG_BEATS if watchdog_s > 0 else None
