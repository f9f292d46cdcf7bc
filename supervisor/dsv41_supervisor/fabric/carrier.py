"""Whether a link has a carrier, by one system call: cheap enough for every look at a node.

Asked by a socket and not in /sys, which shows the network namespace that mounted it.
"""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFFLAGS = 0x8913
_IFF_UP, _IFF_RUNNING = 0x1, 0x40


def carrier(interface: str) -> str:
    """`up`, `down` (no carrier, or switched off) or `missing`. Source: netdevice(7)."""
    request = struct.pack("16sH14x", interface.encode()[:15], 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, request)
        except OSError:
            return "missing"
    (flags,) = struct.unpack_from("H", answer, 16)
    return "up" if flags & _IFF_UP and flags & _IFF_RUNNING else "down"
