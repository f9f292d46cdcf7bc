"""Ports for servers that a test starts: chosen here, bound later by another process, seconds or a minute on."""

from __future__ import annotations

import contextlib
import random
import socket

FIRST, LAST = 12_000, 18_999
"""Below the ports that Linux gives to outgoing connections (from 32768, ip_local_port_range): one of those can be
taken while an engine still imports. Also away from the demo's own (7141, 8888, from 20000, from 30000)."""

_PORTS = iter(random.sample(range(FIRST, LAST + 1), LAST + 1 - FIRST))


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody holds now, and never the same one twice in a run."""
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((address, port))
            return port
    raise AssertionError(f"no port is free from {FIRST} to {LAST}")
