"""Kernel settings of the rails, from /proc/sys: which interface answers ARP for which address, and who forwards."""

from __future__ import annotations

from collections.abc import Iterable

from .facts import Sysctls
from .roots import Roots, number


def read_sysctls(roots: Roots, interfaces: Iterable[str]) -> Sysctls:
    """Effective values: for these three the kernel takes the larger of `all` and the interface's own."""
    ipv4 = roots.proc / "sys/net/ipv4"
    found: dict[str, dict[str, int]] = {"arp_ignore": {}, "arp_announce": {}, "rp_filter": {}}
    for interface in interfaces:
        # In a path a dot of an interface's name stays a dot: each name is a directory.
        for name, values in found.items():
            own = number(ipv4 / "conf" / interface / name)
            if own is not None:
                values[interface] = max(own, number(ipv4 / "conf/all" / name) or 0)
    return Sysctls(ip_forward=number(ipv4 / "ip_forward"), **found)
