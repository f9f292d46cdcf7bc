"""Kernel settings of the interfaces, from /proc/sys: which one answers ARP for which address, and who forwards."""

from __future__ import annotations

from collections.abc import Iterable

from .facts import MAX_LINKS, Sysctls
from .roots import Roots, names, number


def read_sysctls(roots: Roots, interfaces: Iterable[str]) -> Sysctls:
    """Effective values: for these three the kernel takes the larger of `all` and the interface's own.

    Of `interfaces` first, then of every other one: whether a twin that is no rail answers for a rail's address is its
    own setting.
    """
    ipv4 = roots.proc / "sys/net/ipv4"
    others = (name for name in names(ipv4 / "conf") if name not in ("all", "default"))
    wanted = list(dict.fromkeys([*interfaces, *others]))[:MAX_LINKS]
    found: dict[str, dict[str, int]] = {"arp_ignore": {}, "arp_announce": {}, "rp_filter": {}}
    for name, values in found.items():
        of_all = number(ipv4 / "conf/all" / name) or 0
        for interface in wanted:
            # In a path a dot of an interface's name stays a dot: each name is a directory.
            own = number(ipv4 / "conf" / interface / name)
            if own is not None:
                values[interface] = max(own, of_all)
    return Sysctls(ip_forward=number(ipv4 / "ip_forward"), **found)
