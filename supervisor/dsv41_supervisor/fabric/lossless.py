"""Pause per priority (PFC) and congestion marking (ECN) of an interface, where they can be read.

PFC is asked for over netlink: pyroute2 has no DCB messages, and the program `dcb` would have to be in the unit's path.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Iterator

from .roots import Roots, Unreadable, names, number

_NLMSG_ERROR, _RTM_GETDCB, _NLM_F_REQUEST = 2, 78, 1
_DCB_CMD_IEEE_GET = 21
_DCB_ATTR_IFNAME, _DCB_ATTR_IEEE, _DCB_ATTR_IEEE_PFC = 1, 13, 2
_NLA_TYPE_MASK = 0x3FFF
"""Source: linux/dcbnl.h. A message is nlmsghdr, dcbmsg (family, cmd, pad) and attributes."""


async def read_pfc(interface: str) -> tuple[int, ...]:
    """Priorities with pause. Raises Unreadable, also where the driver knows nothing of DCB."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as sock:
        sock.setblocking(False)
        try:
            sock.bind((0, 0))
            sock.send(pfc_question(interface))
            answer = await asyncio.get_running_loop().sock_recv(sock, 64 << 10)
        except OSError as error:
            raise Unreadable(f"the kernel does not say it: {error.strerror}") from None
    return pfc_priorities(answer)


def pfc_question(interface: str) -> bytes:
    name = interface.encode() + b"\0"
    attribute = struct.pack("=HH", 4 + len(name), _DCB_ATTR_IFNAME) + name + b"\0" * (-len(name) % 4)
    body = struct.pack("=BBH", socket.AF_UNSPEC, _DCB_CMD_IEEE_GET, 0) + attribute
    return struct.pack("=IHHII", 16 + len(body), _RTM_GETDCB, _NLM_F_REQUEST, 1, 0) + body


def pfc_priorities(answer: bytes) -> tuple[int, ...]:
    """Priorities with pause from the kernel's answer. Raises Unreadable for an error or anything else."""
    try:
        length, kind = struct.unpack_from("=IH", answer)
        if kind == _NLMSG_ERROR:
            code = -struct.unpack_from("=i", answer, 16)[0]
            why = "its driver has no DCB" if code == errno.EOPNOTSUPP else os.strerror(code)
            raise Unreadable(why)
        for outer, ieee in _attributes(answer[20:length]):
            if outer == _DCB_ATTR_IEEE:
                for inner, pfc in _attributes(ieee):
                    if inner == _DCB_ATTR_IEEE_PFC:
                        # struct ieee_pfc: pfc_cap, then pfc_en, a bit a priority.
                        return tuple(priority for priority in range(8) if pfc[1] >> priority & 1)
    except (struct.error, IndexError, ValueError):
        pass
    raise Unreadable("the kernel's answer holds no table of priorities")


def _attributes(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Raises ValueError for a length that no attribute can have."""
    while len(raw) >= 4:
        length, kind = struct.unpack_from("=HH", raw)
        if not 4 <= length <= len(raw):
            raise ValueError(f"an attribute of {length} bytes")
        yield kind & _NLA_TYPE_MASK, raw[4:length]
        raw = raw[length + 3 & ~3 :]


def read_ecn(roots: Roots, interface: str) -> tuple[int, ...] | None:
    """Priorities on which this end asks senders to slow down (roce_np); None where the driver shows none."""
    enable = roots.sys / "class/net" / interface / "ecn/roce_np/enable"
    found = [name for name in names(enable) if name.isdigit()]
    return tuple(int(name) for name in found if number(enable / name)) if found else None
