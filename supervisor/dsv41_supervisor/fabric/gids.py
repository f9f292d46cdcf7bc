"""Which GID index an HCA is used with: looked up at every launch, IPv4 and RoCE v2, and the rail's own address. Pure.

There is no fallback. A guessed index gives `ibv_modify_qp failed with 61` on a good day, and on a bad one it works
until the next restart. NCCL has one NCCL_IB_GID_INDEX for all HCAs of a process; where they differ NCCL is let choose
by itself, and only if its own rules, which are restated here, lead to the entries that we looked up.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from .facts import ROCE_V1, ROCE_V2, Gid, RdmaPort

_LINK_LOCAL = IPv6Network("fe80::/64")


def find_gid(port: RdmaPort, address: IPv4Address, interface: str) -> Gid | None:
    """The entry for `address` on `interface`; the first where the table holds it twice. None: there is none."""
    fitting = [
        gid for gid in port.gids if gid.ipv4 == address and gid.type == ROCE_V2 and gid.netdev in (None, interface)
    ]
    return min(fitting, key=lambda gid: gid.index, default=None)


def table(port: RdmaPort) -> str:
    """The whole table in one line, for a refusal."""
    return "; ".join(map(str, port.gids)) or "no entry is set"


def nccl_chooses(port: RdmaPort, within: IPv4Network) -> int:
    """The index that NCCL takes with NCCL_IB_GID_INDEX=-1, AF_INET, RoCE version 2 and NCCL_IB_ADDR_RANGE=`within`.

    Source: ncclIbGetGidIndex and ncclUpdateGidIndex in NCCL's src/transport/net_ib.cc, since 2.21.
    """
    by_index = {gid.index: gid for gid in port.gids}
    unset = Gid(index=0, gid=IPv6Address(0))
    chosen = 0
    for index in range(1, max([port.gid_table_length, *(gid.index + 1 for gid in port.gids)])):
        now, candidate = by_index.get(chosen, unset), by_index.get(index, unset)
        fits = candidate.ipv4 is not None and candidate.ipv4 in within
        if not fits:
            continue
        # The first IPv4 entry after an IPv6 one is taken whatever its RoCE version is; later ones only for theirs.
        version = _version(candidate)
        if now.ipv4 is None or ((_version(now) != version or not _valid(now)) and version == 2):
            chosen = index
    return chosen


def _version(gid: Gid) -> int:
    return {ROCE_V1: 1, "RoCE v1": 1, ROCE_V2: 2}.get(gid.type or "", -1)


def _valid(gid: Gid) -> bool:
    return int(gid.gid) != 0 and gid.gid not in _LINK_LOCAL


def covering_network(addresses: Iterable[IPv4Address]) -> IPv4Network:
    """The smallest network that holds all of them."""
    numbers = [int(address) for address in addresses]
    differ = min(numbers) ^ max(numbers)
    return IPv4Network((min(numbers), 32 - differ.bit_length()), strict=False)
