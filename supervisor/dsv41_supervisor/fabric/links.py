"""Link and address facts over rtnetlink: what the kernel says about this node's interfaces."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Interface


@dataclass(frozen=True, slots=True)
class Link:
    """One network interface. `mtu` in bytes; `carrier` means that the other end is there."""

    name: str
    up: bool
    carrier: bool
    mtu: int
    addresses: tuple[IPv4Interface, ...]


async def read_links() -> dict[str, Link]:
    """All interfaces of this network namespace, by name."""
    from pyroute2 import AsyncIPRoute

    async with AsyncIPRoute() as ipr:
        addresses: dict[int, list[IPv4Interface]] = {}
        async for message in await ipr.get_addr(family=2):
            text = message.get("IFA_LOCAL") or message.get("IFA_ADDRESS")
            if text is not None:
                addresses.setdefault(message["index"], []).append(IPv4Interface(f"{text}/{message['prefixlen']}"))
        links = {}
        async for message in await ipr.get_links():
            name = message.get("IFLA_IFNAME")
            links[name] = Link(
                name=name,
                up=bool(message["flags"] & 1),
                carrier=bool(message.get("IFLA_CARRIER", 0)),
                mtu=int(message.get("IFLA_MTU", 0)),
                addresses=tuple(addresses.get(message["index"], ())),
            )
        return links
