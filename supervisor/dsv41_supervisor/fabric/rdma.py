"""RDMA devices from sysfs: port state, GID tables, counters. pyroute2 has no RDMA netlink, so this is the one source.

A GID table moves while a fleet serves: an address that is removed and added again lands on another index, and the old
one is a hole. Hence it is read at every launch and re-read while serving; nothing is remembered from a boot before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path

from .facts import MAX_GIDS, Gid, RdmaDevice, RdmaPort
from .links import pcie_address
from .roots import Roots, names, number, text

_IB_MTUS = (4096, 2048, 1024, 512, 256)
_NOT_SET = "0000:0000:0000:0000:0000:0000:0000:0000"
_HEADERS_BYTES = 96
"""GRH 40, UDP 8, BTH 12, XRC 4, AtomicETH 28, ICRC 4: what the kernel's iboe_get_mtu takes off an interface's MTU."""


def read_rdma(
    roots: Roots, netdev_mtus: dict[str, int], wanted: Collection[str] | None = None
) -> dict[str, RdmaDevice]:
    """RDMA devices by name: those `wanted`, or all. `netdev_mtus` by interface, for the path MTU."""
    base = roots.sys / "class/infiniband"
    return {name: _device(base / name, netdev_mtus) for name in names(base)[:64] if wanted is None or name in wanted}


def still_as_read(roots: Roots, devices: Mapping[str, RdmaDevice]) -> bool:
    """Whether every port state and every GID that was set still reads the same. What was added is not looked for: an
    interface event tells of that, and an entry that moved leaves a hole."""
    for device in devices.values():
        for port in device.ports:
            path = roots.sys / "class/infiniband" / device.name / "ports" / str(port.number)
            if _after_colon(text(path / "state")) != port.state:
                return False
            for gid in port.gids:
                if _gid(text(path / "gids" / str(gid.index))) != gid.gid:
                    return False
                if (text(path / "gid_attrs/types" / str(gid.index)) or None) != gid.type:
                    return False
    return True


def _gid(shown: str | None) -> IPv6Address | None:
    try:
        return IPv6Address(shown or "::")
    except AddressValueError:
        return None


def _device(path: Path, netdev_mtus: dict[str, int]) -> RdmaDevice:
    netdevs = tuple(names(path / "device/net"))
    ports = tuple(
        _port(path / "ports" / name, netdevs, netdev_mtus) for name in names(path / "ports") if name.isdigit()
    )
    return RdmaDevice(
        name=path.name,
        firmware=(text(path / "fw_ver") or None),
        pcie_address=pcie_address(path / "device"),
        netdevs=netdevs[:16],
        ports=ports[:16],
    )


def _port(path: Path, netdevs: tuple[str, ...], netdev_mtus: dict[str, int]) -> RdmaPort:
    indices = _indices(path)
    gids = read_gids(path, indices)
    mtus = [netdev_mtus[name] for name in {*netdevs, *(g.netdev for g in gids if g.netdev)} if name in netdev_mtus]
    rate = re.match(r"(\d{1,6}(?:\.\d{1,6})?)", text(path / "rate") or "")
    return RdmaPort(
        number=int(path.name),
        state=_after_colon(text(path / "state")),
        physical_state=_after_colon(text(path / "phys_state")),
        link_layer=text(path / "link_layer"),
        rate_gbit=float(rate[1]) if rate else None,
        active_mtu=path_mtu(min(mtus)) if mtus else None,
        gid_table_length=len(indices),
        gids=gids[:MAX_GIDS],
        counters=_counters(path / "counters"),
        hw_counters=_counters(path / "hw_counters"),
    )


def path_mtu(netdev_mtu: int) -> int | None:
    """RDMA path MTU over an interface, in bytes: the largest of 256…4096 that fits beside RoCE's headers.

    1500 gives 1024 and 9000 gives 4096. Source: iboe_get_mtu in the kernel's include/rdma/ib_addr.h.
    """
    return next((size for size in _IB_MTUS if netdev_mtu - _HEADERS_BYTES >= size), None)


def _indices(port: Path) -> list[int]:
    return sorted(int(name) for name in names(port / "gids") if name.isdigit())


def read_gids(port: Path, indices: list[int] | None = None) -> tuple[Gid, ...]:
    """The entries of one port's GID table that are set, by index. An index that is not set reads as zeros or EINVAL."""
    entries = []
    for index in indices if indices is not None else _indices(port):
        # A table has up to a thousand indices, nearly all of them not set: a Path each would take most of the time.
        shown = text(f"{port}/gids/{index}")
        gid = _gid(shown) if shown != _NOT_SET else None
        if gid is None or int(gid) == 0:
            continue
        kind = text(port / "gid_attrs/types" / str(index))
        netdev = text(port / "gid_attrs/ndevs" / str(index))
        entries.append(Gid(index=index, gid=gid, type=(kind or None), netdev=(netdev or None)))
    return tuple(entries)


def _after_colon(shown: str | None) -> str | None:
    """`4: ACTIVE` → ACTIVE."""
    return shown.rpartition(":")[2].strip() or None if shown else None


def _counters(path: Path) -> dict[str, int]:
    found = {name: number(path / name) for name in names(path)[:256]}
    return {name: value for name, value in found.items() if value is not None and value >= 0}
