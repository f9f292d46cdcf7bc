"""Which head began a boot: a word in the boot's id, the same over restarts of that head and another on every other one.

Nothing is stored for it, because it has to hold when nothing could be written.
"""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

from ..settings import Settings

MACHINE_ID = Path("/etc/machine-id")
INTERFACES = Path("/sys/class/net")


def origin(settings: Settings, node: str) -> str:
    """Six hexadecimal digits from this machine, its management interface's hardware address, and the state directory.

    A copy of a whole drive in another machine has the same machine id and the same settings, and is another head.
    """
    interface = settings.fleet.nodes[node].management_interface
    parts = [
        _text(MACHINE_ID), _text(INTERFACES / interface / "address") if interface else "", socket.gethostname(), node,
        str(settings.state_dir(node)),
    ]  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:6]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
