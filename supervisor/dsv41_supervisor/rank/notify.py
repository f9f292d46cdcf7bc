"""sd_notify(3) in a few lines: READY, STATUS, WATCHDOG. Does nothing when systemd did not start us."""

from __future__ import annotations

import os
import socket


def notify(*assignments: str) -> None:
    """Tell systemd, such as notify("READY=1", "STATUS=serving"). Source: sd_notify(3), datagram protocol."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto("\n".join(assignments).encode(), address)
