"""The demo's network: one namespace a node with real cables between them, or this machine's loopback.

With root: N network namespaces without a name, held by `keeper.py`. Three nodes are a triangle (one veth pair and one
subnet a cable, MTU 9000), other numbers meet at a bridge. The bridges are in a namespace of their own, so that the
machine itself gets one link only (the way in to the management network), and that one disappears with its peer.
Without root: addresses 127.0.41.1, 127.0.41.2, … and no cables; `shows_not` says what that leaves out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..errors import Dsv41Error, Stage
from ..settings.fleet import Topology
from .addresses import (
    MANAGEMENT_INTERFACE,
    MAX_NODES,
    RAIL_MTU,
    NodeAddresses,
    candidate_prefixes,
    plan,
    plan_loopback,
    topology_of,
    way_in,
)
from .enter import enter_network_of
from .keeper import MARK, members

if TYPE_CHECKING:
    from pyroute2 import IPRoute

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21
_HERE = Path(__file__).parent
_LINK_UP_S = 5.0
_KEEPER_START_S = 10.0
_KEEPER_STOP_S = 20.0

_SHOWS_NOT_WITH_CABLES = "RDMA: the cables are veth pairs, so there are no HCAs, GIDs or RoCE counters"
_SHOWS_NOT_WITH_ONE_NODE = "the fabric: one node has no cables"
_SHOWS_NOT_ANYWHERE = "speed: every node shares this machine's cores, memory and disk"
_SHOWS_NOT_ON_LOOPBACK = (
    "nodes apart: all of them share this machine's loopback, so each needs ports of its own",
    "rails and RDMA: there are no cables, so no MTU, subnet or link check runs and no cable can be pulled",
    "a node that vanishes from the network: only its processes can be killed",
)


class Mode(StrEnum):
    """`namespaces`: every node has a network stack of its own. `loopback`: all of them share this machine's."""

    NAMESPACES = "namespaces"
    LOOPBACK = "loopback"


class Probe(NamedTuple):
    """What this machine lets us build, and why not more."""

    mode: Mode
    reason: str


def mode() -> Probe:
    """Which kind of network can be built here. Tries it for real, in a thread that is thrown away."""
    missing = [
        name
        for name, bit in (("CAP_NET_ADMIN", _CAP_NET_ADMIN), ("CAP_SYS_ADMIN", _CAP_SYS_ADMIN))
        if not _effective_capabilities() >> bit & 1
    ]
    if missing:
        return Probe(Mode.LOOPBACK, f"not root here: this process has no {' and no '.join(missing)}")
    try:
        _in_thread(_try_links)
    except OSError as error:
        return Probe(Mode.LOOPBACK, f"the kernel refused: {error}")
    return Probe(Mode.NAMESPACES, "root, and the kernel makes namespaces, veth pairs and bridges")


class Network:
    """N nodes that can reach each other. Open it, start processes by `argv_in`, close it.

    Attributes: `nodes` in rank order (after `open`); `gateway_address` where a user reaches the head from this
    machine; `killed` what had to be killed at the end.
    Threads: call from one; `open` and `close` are safe to repeat.
    """

    def __init__(self, n_nodes: int, probe: Probe | None = None) -> None:
        if not 1 <= n_nodes <= MAX_NODES:
            raise Dsv41Error(
                f"a demo of {n_nodes} nodes was asked for, but it has 1 to {MAX_NODES}.",
                stage=Stage.FABRIC,
                hint="Give --nodes 1, 3 or 4.",
            )
        self.n_nodes = n_nodes
        probe = probe or mode()
        self.mode, self.reason = probe
        self.topology: Topology = topology_of(n_nodes)
        self.id = secrets.token_hex(4)
        self.prefix: IPv4Network | None = None
        self.nodes: list[NodeAddresses] = []
        self.killed: list[str] = []
        self._keeper: subprocess.Popen[bytes] | None = None
        self._claim: socket.socket | None = None
        self._namespaces: dict[str, tuple[int, int]] = {}  # node, or "" for the hub: pid and inode

    @property
    def shows_not(self) -> tuple[str, ...]:
        """What this network does not show, in plain words."""
        if self.mode is Mode.LOOPBACK:
            return (*_SHOWS_NOT_ON_LOOPBACK, _SHOWS_NOT_ANYWHERE)
        cables = _SHOWS_NOT_WITH_CABLES if self.n_nodes > 1 else _SHOWS_NOT_WITH_ONE_NODE
        return (cables, _SHOWS_NOT_ANYWHERE)

    @property
    def gateway_address(self) -> IPv4Address:
        return self.nodes[0].management.ip

    @property
    def way_in(self) -> str:
        """Name of the one link that this machine itself gets."""
        return f"dsv41-{self.id}"

    def argv_in(self, node: str, argv: list[str]) -> list[str]:
        """The argv that runs `argv` on a node. Also marks what it starts, so that nothing can be left behind."""
        if node not in {n.name for n in self.nodes}:
            raise KeyError(f"{node} is not a node of this network: {[n.name for n in self.nodes]}")
        options = ["--mark", self.id]
        if node in self._namespaces:
            pid, inode = self._namespaces[node]
            options += ["--pid", str(pid), "--inode", str(inode)]
        return [sys.executable, "-I", "-S", str(_HERE / "enter.py"), *options, "--", *argv]

    def namespace_pid(self, node: str) -> int | None:
        """Process that holds a node's namespace, for `nsenter --net --target`; None on loopback."""
        return self._namespaces[node][0] if node in self._namespaces else None

    # -- life ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Build it. Raises Dsv41Error and leaves nothing when it cannot be built."""
        if self._keeper is not None:
            return
        try:
            if self.mode is Mode.NAMESPACES:
                self._open_namespaces()
            else:
                self._start_keeper(0)
                self.nodes = plan_loopback(self.n_nodes)
        except BaseException:
            self.close()
            raise

    def close(self) -> list[str]:
        """Take it away with everything that still runs in it. Returns what is left all the same; empty when clean."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return []
        left = self._stop_keeper(keeper)
        deadline = time.monotonic() + 5
        while (found := self._leftovers()) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._namespaces = {}
        if self._claim is not None:
            self._claim.close()
            self._claim = None
        return left + found

    def __enter__(self) -> Network:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Network:
        await asyncio.to_thread(self.open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # -- private -------------------------------------------------------------------------------------------------

    def _open_namespaces(self) -> None:
        self.prefix = self._claim_prefix()
        nodes = plan(self.n_nodes, self.prefix)
        pids = self._start_keeper(self.n_nodes + 1)
        for name, pid in zip(("", *(node.name for node in nodes)), pids, strict=True):
            self._namespaces[name] = pid, os.stat(f"/proc/{pid}/ns/net").st_ino
        try:
            _in_thread(lambda: self._make_links(nodes))
            self._in_namespace("", lambda: self._set_up_hub(nodes))
            for node in nodes:
                self._in_namespace(node.name, lambda node=node: _set_up_node(node))
            _in_thread(self._set_up_way_in)
            for node in nodes:
                self._in_namespace(node.name, lambda node=node: _wait_node_up(node))
        except OSError as error:
            raise Dsv41Error(
                f"the kernel refused to build the demo's network: {error}.",
                stage=Stage.FABRIC,
                hint="Run the demo as an ordinary user: it then uses loopback.",
            ) from error
        self.nodes = nodes

    def _make_links(self, nodes: list[NodeAddresses]) -> None:
        """Every veth pair, each end made in the namespace where it belongs. Runs in the root namespace."""
        pid = {name: holder for name, (holder, _) in self._namespaces.items()}
        with _netlink() as ipr:
            _veth(ipr, self.way_in, None, "mgmt-in", pid[""])
            for node in nodes:
                _veth(ipr, node.management_interface, pid[node.name], f"mgmt-{node.rank}", pid[""])
                for name, end in node.rails.items():
                    if end.peer is None:
                        _veth(ipr, end.interface, pid[node.name], f"rail-{name}-{node.rank}", pid[""])
                        continue
                    other = next(n for n in nodes if n.name == end.peer)
                    if node.rank < other.rank:
                        _veth(ipr, end.interface, pid[node.name], other.rails[name].interface, pid[other.name])

    def _set_up_hub(self, nodes: list[NodeAddresses]) -> None:
        """A bridge for management and one for each switched rail; their ports are all links that are there."""
        rails = sorted({name for node in nodes for name, end in node.rails.items() if end.peer is None})
        with _netlink() as ipr:
            links = {link.get_attr("IFLA_IFNAME"): link["index"] for link in ipr.get_links()}
            for bridge, prefix, mtu in (
                ("mgmt", "mgmt-", 1500),
                *((f"rail-{r}", f"rail-{r}-", RAIL_MTU) for r in rails),
            ):
                ipr.link("add", ifname=bridge, kind="bridge", br_stp_state=0, br_forward_delay=0)
                (index,) = ipr.link_lookup(ifname=bridge)
                for name, port in links.items():
                    if name.startswith(prefix):
                        ipr.link("set", index=port, master=index, mtu=mtu, state="up")
                ipr.link("set", index=index, mtu=mtu, state="up")
            ipr.link("set", index=links["lo"], state="up")

    def _set_up_way_in(self) -> None:
        assert self.prefix is not None
        with _netlink() as ipr:
            (index,) = ipr.link_lookup(ifname=self.way_in)
            address = way_in(self.prefix)
            ipr.addr("add", index=index, address=str(address.ip), prefixlen=address.network.prefixlen)
            ipr.link("set", index=index, state="up")
            _wait_up(ipr, index, self.way_in)

    def _claim_prefix(self) -> IPv4Network:
        """A 10.x /16 that this machine does not use. Two demos at once are told apart by an abstract socket."""
        for prefix in candidate_prefixes(_in_thread(_used_networks)):
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                claim.bind(f"\0dsv41-demo-{prefix.network_address}")
            except OSError as error:
                claim.close()
                if error.errno == errno.EADDRINUSE:
                    continue
                raise
            self._claim = claim
            return prefix
        raise Dsv41Error(
            "every 10.x.0.0/16 overlaps a route of this machine, and the demo needs one.",
            stage=Stage.FABRIC,
            hint="Run the demo as an ordinary user: it then uses loopback.",
        )

    def _in_namespace(self, name: str, work: Callable[[], T]) -> T:
        pid, inode = self._namespaces[name]

        def inside() -> T:
            enter_network_of(pid, inode)
            return work()

        return _in_thread(inside)

    def _start_keeper(self, n_namespaces: int) -> list[int]:
        argv = [sys.executable, "-I", "-S", str(_HERE / "keeper.py"), str(n_namespaces), self.id]
        # A session of its own: Ctrl-C must reach the demo, which then closes the pipe.
        self._keeper = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        answer = _read_line(self._keeper, _KEEPER_START_S)
        if "pids" not in answer:
            raise Dsv41Error(
                f"the kernel refused a network namespace: {answer.get('error', 'the keeper did not answer')}.",
                stage=Stage.FABRIC,
                hint="Run the demo as an ordinary user: it then uses loopback.",
            )
        pids = answer["pids"]
        assert isinstance(pids, list)
        return pids

    def _stop_keeper(self, keeper: subprocess.Popen[bytes]) -> list[str]:
        assert keeper.stdin is not None and keeper.stdout is not None
        with contextlib.suppress(OSError):
            keeper.stdin.close()
        answer = _read_line(keeper, _KEEPER_STOP_S)
        killed = answer.get("killed", [])
        assert isinstance(killed, list)
        self.killed += [f"process {pid} ({name})" for pid, name in killed]
        try:
            keeper.wait(5)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()
            return [f"the keeper of the namespaces (process {keeper.pid}) did not end by itself"]
        finally:
            keeper.stdout.close()
        return []

    def _leftovers(self) -> list[str]:
        inodes = {inode for _, inode in self._namespaces.values()}
        found = members(inodes, self.id, spare={os.getpid()})
        left = [f"process {pid} ({name})" for pid, name in sorted(found.items())]
        if self.mode is Mode.NAMESPACES and self.way_in in {name for _, name in socket.if_nameindex()}:
            left.append(f"link {self.way_in}")
        return left


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _in_thread(work: Callable[[], T]) -> T:
    """Run in a new thread and wait: namespaces belong to threads, and pyroute2 wants a thread without an event loop."""
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="dsv41-netns", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


@contextlib.contextmanager
def _netlink() -> Iterator[IPRoute]:
    """A netlink socket in this thread's namespace; what the kernel refuses becomes an OSError."""
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as ipr:
            yield ipr
    except NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code)) from error


def _try_links() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    with _netlink() as ipr:
        ipr.link("add", ifname="probe", kind="bridge")
        ipr.link("add", ifname="probe-a", kind="veth", peer={"ifname": "probe-b"})


def _used_networks() -> list[IPv4Network]:
    """Every IPv4 network that this machine has an address in or a route to, in all tables."""
    used = []
    with _netlink() as ipr:
        for route in ipr.get_routes(family=socket.AF_INET):
            if route.get_attr("RTA_DST") is not None:
                used.append(IPv4Network((route.get_attr("RTA_DST"), route["dst_len"]), strict=False))
        for address in ipr.get_addr(family=socket.AF_INET):
            used.append(IPv4Network((address.get_attr("IFA_ADDRESS"), address["prefixlen"]), strict=False))
    return used


def _veth(ipr: IPRoute, name: str, pid: int | None, peer: str, peer_pid: int) -> None:
    here: Mapping[str, int] = {} if pid is None else {"net_ns_pid": pid}
    ipr.link("add", ifname=name, kind="veth", peer={"ifname": peer, "net_ns_pid": peer_pid}, **here)


def _set_up_node(node: NodeAddresses) -> None:
    """Addresses, MTU and state of every link of one node."""
    with _netlink() as ipr:
        links = {link.get_attr("IFLA_IFNAME"): link["index"] for link in ipr.get_links()}
        ipr.link("set", index=links["lo"], state="up")
        wanted = [(MANAGEMENT_INTERFACE, node.management, 1500)]
        wanted += [(end.interface, end.address, RAIL_MTU) for end in node.rails.values()]
        for interface, address, mtu in wanted:
            index = links[interface]
            ipr.addr("add", index=index, address=str(address.ip), prefixlen=address.network.prefixlen)
            ipr.link("set", index=index, mtu=mtu, state="up")


def _wait_node_up(node: NodeAddresses) -> None:
    """A cable's carrier needs both ends, so this comes after every node is set up."""
    with _netlink() as ipr:
        for interface in (node.management_interface, *(end.interface for end in node.rails.values())):
            (index,) = ipr.link_lookup(ifname=interface)
            _wait_up(ipr, index, f"{interface} of {node.name}")


def _wait_up(ipr: IPRoute, index: int, name: str) -> None:
    deadline = time.monotonic() + _LINK_UP_S
    while True:
        (link,) = ipr.get_links(index)
        if link.get_attr("IFLA_OPERSTATE") == "UP":
            return
        if time.monotonic() > deadline:
            raise OSError(errno.ENETDOWN, f"link {name} did not come up within {_LINK_UP_S:g} s")
        time.sleep(0.01)


def _read_line(keeper: subprocess.Popen[bytes], timeout_s: float) -> dict[str, object]:
    """One JSON line from the keeper; {} when it ended or said nothing in time."""
    assert keeper.stdout is not None
    fd, line, deadline = keeper.stdout.fileno(), b"", time.monotonic() + timeout_s
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        more = os.read(fd, 65536) if ready else b""
        if not more:
            return {}
        line += more
    answer = json.loads(line)
    return answer if isinstance(answer, dict) else {}


__all__ = ["MARK", "Mode", "Network", "Probe", "mode"]
