"""Interfaces, addresses and neighbours over rtnetlink; what only sysfs has (PCIe) is added to them.

Netlink is asked first: it answers for this network namespace, while /sys shows the one it was mounted in. A sysfs
entry is used only when its index is the one netlink gave.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

from .facts import MAX_LINKS, MAX_ROWS, Link, Neighbour, Pcie
from .roots import Roots, number, text

_NUD = {1: "INCOMPLETE", 2: "REACHABLE", 4: "STALE", 8: "DELAY", 16: "PROBE", 32: "FAILED", 64: "NOARP",
        128: "PERMANENT"}  # fmt: skip
_COUNTERS = (
    "rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors", "rx_missed_errors",
    "rx_over_errors", "tx_carrier_errors",
)  # fmt: skip


async def read_links() -> dict[str, Link]:
    """All interfaces of this network namespace, by name, with their IPv4 addresses."""
    from pyroute2 import AsyncIPRoute

    async with AsyncIPRoute() as ipr:
        addresses: dict[int, list[IPv4Interface]] = {}
        async for message in await ipr.get_addr(family=2):
            held = _address(message)
            if held is not None:
                addresses.setdefault(message["index"], []).append(held)
        return kept([_link(m, tuple(addresses.get(m["index"], ()))) async for m in await ipr.get_links()])


def kept(links: Sequence[Link]) -> dict[str, Link]:
    """By name, and no more than facts may carry: of a machine with hundreds of containers, their ends go first."""
    if len(links) > MAX_LINKS:
        links = sorted(links, key=lambda link: link.kind is not None and not link.addresses)[:MAX_LINKS]
    return {link.name: link for link in links}


def _address(message: Any) -> IPv4Interface | None:
    held = message.get("IFA_LOCAL") or message.get("IFA_ADDRESS")
    return IPv4Interface(f"{held}/{message['prefixlen']}") if held is not None else None


def _link(message: Any, addresses: tuple[IPv4Interface, ...]) -> Link:
    statistics = message.get("IFLA_STATS64") or message.get("IFLA_STATS") or {}
    info = message.get("IFLA_LINKINFO")
    return Link(
        name=message.get("IFLA_IFNAME"),
        index=message["index"],
        up=bool(message["flags"] & 1),
        carrier=bool(message.get("IFLA_CARRIER", 0)),
        carrier_changes=message.get("IFLA_CARRIER_CHANGES"),
        mtu=int(message.get("IFLA_MTU", 0)),
        mac=message.get("IFLA_ADDRESS"),
        kind=info.get("IFLA_INFO_KIND") if info is not None else None,
        addresses=addresses[:64],
        phys_switch_id=_hex(message.get("IFLA_PHYS_SWITCH_ID")),
        phys_port_name=message.get("IFLA_PHYS_PORT_NAME"),
        counters={name: int(statistics[name]) for name in _COUNTERS if name in statistics},
    )


def _hex(value: Any) -> str | None:
    """pyroute2 writes bytes as `aa:bb`, sysfs as `aabb`."""
    if value is None:
        return None
    shown = value.hex() if isinstance(value, bytes) else str(value)
    return shown.replace(":", "").replace(" ", "").lower() or None


async def read_neighbours() -> tuple[Neighbour, ...]:
    """The IPv4 neighbour table, without the rows of interfaces that do no ARP."""
    from pyroute2 import AsyncIPRoute

    async with AsyncIPRoute() as ipr:
        names = {m["index"]: m.get("IFLA_IFNAME") async for m in await ipr.get_links()}
        rows = []
        async for message in await ipr.get_neighbours(family=2):
            address, state = _ip(message.get("NDA_DST")), _NUD.get(message["state"], str(message["state"]))
            interface = names.get(message["ifindex"])
            if address is not None and interface is not None and state != "NOARP":
                rows.append(Neighbour(address=address, interface=interface, state=state, mac=message.get("NDA_LLADDR")))
        return tuple(rows[:MAX_ROWS])


def _ip(value: Any) -> IPv4Address | None:
    return IPv4Address(value) if value else None


def with_sysfs(link: Link, roots: Roots) -> Link:
    """The link with what sysfs and systemd-networkd know about it: physical port, speed, PCIe, file that set it up."""
    here = roots.sys / "class/net" / link.name
    changes: dict[str, Any] = {"network_file": network_file(roots.run, link.index)}
    if number(here / "ifindex") == link.index:
        speed = number(here / "speed")
        changes |= {
            "phys_switch_id": link.phys_switch_id or text(here / "phys_switch_id") or None,
            "phys_port_name": link.phys_port_name or text(here / "phys_port_name") or None,
            "speed_mbit": link.speed_mbit or (speed if speed is not None and speed > 0 else None),
            "pcie": read_pcie(here / "device"),
        }
    return link.model_copy(update=changes)


def network_file(run: Path, index: int) -> str | None:
    """The systemd-networkd file behind an interface: "" when networkd leaves it alone, None when it does not run."""
    links = run / "systemd/netif/links"
    if not links.is_dir():
        return None
    found = re.search(r"^NETWORK_FILE=(.*)$", text(links / str(index)) or "", re.MULTILINE)
    return found[1][:1024] if found else ""


def read_pcie(device: Path) -> Pcie | None:
    """The PCIe function behind `/sys/class/net/X/device` or `/sys/class/infiniband/X/device`; None for virtual ones."""
    address = pcie_address(device)
    if address is None:
        return None
    return Pcie(
        address=address,
        speed_gts=_gts(text(device / "current_link_speed")),
        width=number(device / "current_link_width"),
        max_speed_gts=_gts(text(device / "max_link_speed")),
        max_width=number(device / "max_link_width"),
        aer_correctable=_aer_total(device / "aer_dev_correctable"),
        aer_nonfatal=_aer_total(device / "aer_dev_nonfatal"),
        aer_fatal=fatal_errors(device),
    )


def fatal_errors(device: Path) -> int | None:
    """Fatal PCIe errors counted since power-on; None where they are not counted."""
    return _aer_total(device / "aer_dev_fatal")


def pcie_address(device: Path) -> str | None:
    """The address that the `device` link leads to, when it is one of PCIe."""
    try:
        name = device.resolve(strict=True).name
    except OSError:
        return None
    return name if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", name) else None


def _gts(shown: str | None) -> float | None:
    found = re.match(r"(\d+(?:\.\d+)?) GT/s", shown or "")
    return float(found[1]) if found else None


def _aer_total(path: Path) -> int | None:
    found = re.search(r"^TOTAL_ERR\w* (\d+)$", text(path) or "", re.MULTILINE)
    return int(found[1]) if found else None


async def with_ethtool(links: dict[str, Link], wanted: Collection[str]) -> dict[str, Link]:
    """Speed, autonegotiation and plugged module of some interfaces, over ethtool netlink, where the driver has them."""
    from pyroute2 import AsyncNlEthtool
    from pyroute2.netlink.exceptions import NetlinkError

    changed = dict(links)
    for name in sorted(set(wanted) & set(links)):
        update: dict[str, Any] = {}
        async with AsyncNlEthtool() as ethtool:
            try:
                async for message in await ethtool.get_linkmode(ifname=name):
                    speed = message.get("ETHTOOL_A_LINKMODES_SPEED")
                    if speed and speed != 0xFFFFFFFF:
                        update["speed_mbit"] = int(speed)
                    autoneg = message.get("ETHTOOL_A_LINKMODES_AUTONEG")
                    update["autoneg"] = bool(autoneg) if autoneg is not None else None
            except NetlinkError:
                pass
        module = await _module(name)
        changed[name] = links[name].model_copy(update=update | ({"module": module} if module else {}))
    return changed


async def _module(name: str) -> str | None:
    """Vendor and part of the plugged cable or module, from the upper half of EEPROM page 0. Needs CAP_NET_ADMIN."""
    from pyroute2 import AsyncNlEthtool
    from pyroute2.netlink.exceptions import NetlinkError
    from pyroute2.netlink.generic.ethtool import ethtool_module_eeprom_msg

    asked = ethtool_module_eeprom_msg()
    asked["attrs"] = [
        ("ETHTOOL_A_MODULE_EEPROM_OFFSET", 128), ("ETHTOOL_A_MODULE_EEPROM_LENGTH", 128),
        ("ETHTOOL_A_MODULE_EEPROM_PAGE", 0), ("ETHTOOL_A_MODULE_EEPROM_BANK", 0),
        ("ETHTOOL_A_MODULE_EEPROM_I2C_ADDRESS", 0x50),
    ]  # fmt: skip
    async with AsyncNlEthtool() as ethtool:
        try:
            async for message in await ethtool.get_module_eeprom(asked, ifname=name):
                raw = message.get("ETHTOOL_A_MODULE_EEPROM_DATA")
                return module_name(bytes.fromhex(_hex(raw) or "")) if raw else None
        except (NetlinkError, ValueError):
            return None
    return None


def module_name(page: bytes) -> str | None:
    """Vendor and part number from bytes 128–255 of page 0: SFF-8636 (QSFP28, QSFP+) or CMIS (QSFP112, OSFP)."""
    if len(page) < 64:
        return None
    vendor, part = (page[20:36], page[40:56]) if page[0] in (0x0C, 0x0D, 0x11) else (page[1:17], page[20:36])
    shown = " ".join(field.decode("ascii", errors="replace").strip(" \0") for field in (vendor, part)).strip()
    return shown if shown and shown.isprintable() and shown.isascii() else None
