"""What one node's fabric looks like: frozen facts, read by the readers beside this file, judged by
`fabric/checks/`.

Facts travel between supervisors as JSON, so every text and every table has a bound, and whoever receives them checks
the bounds again (`NodeFacts.model_validate_json`). `None` always means: could not be read; `NodeFacts.unread` says why.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

FACTS_FORMAT = 1
MAX_FACTS_BYTES = 1 << 20
MAX_GIDS = 256
MAX_LINKS = 256
MAX_ROWS = 512

Word = Annotated[str, StringConstraints(max_length=64)]
Text = Annotated[str, StringConstraints(max_length=300)]
PathText = Annotated[str, StringConstraints(max_length=1024)]
Count = Annotated[int, Field(ge=0, lt=1 << 64)]
Counters = Annotated[dict[Word, Count], Field(max_length=256)]

ROCE_V1 = "IB/RoCE v1"
ROCE_V2 = "RoCE v2"
UNLIMITED = -1
MAIN_TABLE = 254
UNICAST = "unicast"
SWALLOWING = ("blackhole", "unreachable", "prohibit")
"""Kinds of routes that lead nowhere on purpose, as `ip route` writes them."""


class Facts(BaseModel):
    """Base of all facts: frozen; a newer peer's extra fields are dropped."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class Pcie(Facts):
    """The PCIe function behind an interface. Speeds in GT/s per lane. `aer_*`: totals since power-on."""

    address: Word
    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None
    aer_correctable: Count | None = None
    aer_nonfatal: Count | None = None
    aer_fatal: Count | None = None


class Link(Facts):
    """One network interface. `mtu` in bytes; `carrier` means that the other end is there.

    `phys_switch_id` with `phys_port_name` name the physical port: PCIe twins of one port have both in common.
    `network_file` is the systemd-networkd file that configures it; "" when networkd runs and leaves it alone.
    """

    name: Word
    index: int = 0
    up: bool = True
    carrier: bool = True
    carrier_changes: Count | None = None
    mtu: int = 0
    mac: Word | None = None
    kind: Word | None = None
    addresses: Annotated[tuple[IPv4Interface, ...], Field(max_length=64)] = ()
    phys_switch_id: Word | None = None
    phys_port_name: Word | None = None
    speed_mbit: int | None = None
    autoneg: bool | None = None
    module: Text | None = None
    pcie: Pcie | None = None
    network_file: PathText | None = None
    pfc_priorities: Annotated[tuple[int, ...], Field(max_length=8)] | None = None
    ecn_priorities: Annotated[tuple[int, ...], Field(max_length=8)] | None = None
    counters: Counters = Field(default_factory=dict)


class Route(Facts):
    """One route. `destination` 0.0.0.0/0 is the default route; `kind` unicast, blackhole, unreachable, prohibit or
    throw."""

    destination: IPv4Network
    kind: Word = UNICAST
    table: Count = MAIN_TABLE
    interface: Word | None = None
    gateway: IPv4Address | None = None
    source: IPv4Address | None = None

    def __str__(self) -> str:
        """As `ip route del` takes it."""
        words = [] if self.kind == UNICAST else [self.kind]
        words.append(str(self.destination) if self.destination.prefixlen < 32 else str(self.destination[0]))
        words += ["via", str(self.gateway)] if self.gateway is not None else []
        words += ["dev", self.interface] if self.interface is not None else []
        words += ["table", str(self.table)] if self.table != MAIN_TABLE else []
        return " ".join(words)


class Way(Facts):
    """Where the kernel sends packets for one address, asked as `ip route get` does. `problem`: nowhere, and how that
    shows, as the end of a sentence about packets."""

    destination: IPv4Address
    source: IPv4Address | None = None
    interface: Word | None = None
    gateway: IPv4Address | None = None
    problem: Text | None = None


class Neighbour(Facts):
    """One row of the neighbour (ARP) table. `state` as `ip neigh` writes it, such as REACHABLE or FAILED."""

    address: IPv4Address
    interface: Word
    state: Word
    mac: Word | None = None


class Gid(Facts):
    """One entry of a GID table that is set. `type` as sysfs writes it: "IB/RoCE v1" or "RoCE v2"."""

    index: Annotated[int, Field(ge=0, lt=1 << 16)]
    gid: IPv6Address
    type: Word | None = None
    netdev: Word | None = None

    @property
    def ipv4(self) -> IPv4Address | None:
        """The IPv4 address that this GID maps, if it is one."""
        return self.gid.ipv4_mapped

    def __str__(self) -> str:
        shown = self.ipv4 or self.gid
        return f"{self.index}: {shown} {self.type or 'type unknown'} on {self.netdev or 'no interface'}"


class RdmaPort(Facts):
    """One port of an RDMA device. `state` such as ACTIVE or DOWN; `active_mtu` is the RDMA path MTU in bytes.

    `active_mtu_derived`: the kernel's rule applied to the interface's MTU, because nobody could be asked.
    """

    number: Annotated[int, Field(ge=1, le=255)]
    state: Word | None = None
    physical_state: Word | None = None
    link_layer: Word | None = None
    rate_gbit: float | None = None
    active_mtu: int | None = None
    active_mtu_derived: bool = True
    gid_table_length: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    gids: Annotated[tuple[Gid, ...], Field(max_length=MAX_GIDS)] = ()
    counters: Counters = Field(default_factory=dict)
    hw_counters: Counters = Field(default_factory=dict)


class RdmaDevice(Facts):
    """One RDMA device (HCA)."""

    name: Word
    firmware: Word | None = None
    pcie_address: Word | None = None
    netdevs: Annotated[tuple[Word, ...], Field(max_length=16)] = ()
    ports: Annotated[tuple[RdmaPort, ...], Field(max_length=16)] = ()

    def port(self, number: int = 1) -> RdmaPort | None:
        return next((port for port in self.ports if port.number == number), None)


class Sysctls(Facts):
    """Kernel settings that decide which interface answers for which address. Effective values by interface."""

    ip_forward: int | None = None
    arp_ignore: dict[Word, int] = Field(default_factory=dict, max_length=MAX_LINKS)
    arp_announce: dict[Word, int] = Field(default_factory=dict, max_length=MAX_LINKS)
    rp_filter: dict[Word, int] = Field(default_factory=dict, max_length=MAX_LINKS)


class Firewall(Facts):
    """What the packet filter does with new TCP connections: accept, drop or unknown.

    `incoming` by interface, to this node; `outgoing` those on which connections to peers are dropped for certain.
    `forwarded` by "in>out" pair of rails, through this node.
    """

    incoming: dict[Word, Word] = Field(default_factory=dict, max_length=MAX_LINKS)
    outgoing: dict[Word, Word] = Field(default_factory=dict, max_length=MAX_LINKS)
    forwarded: dict[Word, Word] = Field(default_factory=dict, max_length=MAX_LINKS)
    tables: Annotated[tuple[Word, ...], Field(max_length=64)] = ()


class Limits(Facts):
    """Resource limits a rank runs with. `of` says whose they are; UNLIMITED is -1."""

    of: Text
    memlock_bytes: int
    n_files: int


class NcclLibrary(Facts):
    """One libnccl on disk. `patches`: names of public patches whose marker is in the file."""

    path: PathText
    sha256: Word | None = None
    build_id: Word | None = None
    version: Word | None = None
    patches: Annotated[tuple[Word, ...], Field(max_length=8)] = ()


class Nccl(Facts):
    """The libnccl a rank will load, and those that the running rank has mapped."""

    planned: NcclLibrary | None = None
    mapped: Annotated[tuple[NcclLibrary, ...], Field(max_length=8)] = ()


class NodeFacts(Facts):
    """Everything about one node's fabric, read at one time. `unread`: what could not be read, and why."""

    format: int = FACTS_FORMAT
    node: Word
    at_s: float = 0.0
    links: Annotated[dict[Word, Link], Field(max_length=MAX_LINKS)] = Field(default_factory=dict)
    routes: Annotated[tuple[Route, ...], Field(max_length=MAX_ROWS)] = ()
    ways: Annotated[tuple[Way, ...], Field(max_length=MAX_ROWS)] = ()
    neighbours: Annotated[tuple[Neighbour, ...], Field(max_length=MAX_ROWS)] = ()
    rdma: Annotated[dict[Word, RdmaDevice], Field(max_length=64)] = Field(default_factory=dict)
    sysctls: Sysctls = Field(default_factory=Sysctls)
    firewall: Firewall | None = None
    limits: Limits | None = None
    nccl: Nccl = Field(default_factory=Nccl)
    unread: Annotated[dict[Word, Text], Field(max_length=64)] = Field(default_factory=dict)

    def why_unread(self, what: str) -> str:
        """Why a fact is not there, for a sentence."""
        return self.unread.get(what, "nobody could say")
