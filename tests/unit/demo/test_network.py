"""The demo's network, built for real: cables carry what they should, and nothing is ever left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from dsv41_supervisor.demo import network as network_module
from dsv41_supervisor.demo.addresses import candidate_prefixes, plan, plan_loopback
from dsv41_supervisor.demo.network import Mode, Network, Probe, mode
from dsv41_supervisor.errors import Dsv41Error

LOOPBACK = Probe(Mode.LOOPBACK, "asked for by the test")
needs_root = pytest.mark.skipif(mode().mode is not Mode.NAMESPACES, reason=f"no namespaces: {mode().reason}")

ECHO = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.bind((sys.argv[1], 9)); print("bound", flush=True)
    while True:
        got, who = s.recvfrom(65535); s.sendto(str(len(got)).encode(), who)
"""
ASK = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.settimeout(30); s.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER = DO: never fragment
    try:
        s.sendto(b"x" * int(sys.argv[2]), (sys.argv[1], 9)); print(s.recv(100).decode())
    except OSError as error:
        print(error.strerror)
"""


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


@pytest.fixture
def triangle() -> Iterator[Network]:
    net = Network(3)
    with net:
        yield net


def run(net: Network, node: str, *argv: str) -> str:
    done = subprocess.run(net.argv_in(node, list(argv)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def links_of(net: Network, node: str) -> dict[str, int]:
    """Name and MTU of every link of a node."""
    code = "import socket, fcntl, struct, json\n" + textwrap.dedent("""
        s = socket.socket()
        mtu = lambda n: struct.unpack("16si", fcntl.ioctl(s, 0x8921, struct.pack("16si", n.encode(), 0)))[1]
        print(json.dumps({n: mtu(n) for _, n in socket.if_nameindex()}))
    """)
    return json.loads(run(net, node, sys.executable, "-c", code))


@needs_root
@pytest.mark.parametrize("n_nodes", [3, 4])
def test_every_cable_carries_a_whole_9000_byte_packet_and_not_one_byte_more(n_nodes: int) -> None:
    with Network(n_nodes) as net:
        first, last = net.nodes[0], net.nodes[-1]
        for node in net.nodes:
            mtus = links_of(net, node.name)
            assert {end.interface for end in node.rails.values()} < set(mtus)
            assert {mtus[end.interface] for end in node.rails.values()} == {9000}
        rail = next(name for name, end in last.rails.items() if end.peer in (None, first.name))
        address = str(last.rails[rail].address.ip)
        echo = subprocess.Popen(net.argv_in(last.name, [sys.executable, "-c", ECHO, address]), stdout=subprocess.PIPE)
        assert echo.stdout is not None and echo.stdout.readline() == b"bound\n"
        assert run(net, first.name, sys.executable, "-c", ASK, address, "8972") == "8972"
        assert run(net, first.name, sys.executable, "-c", ASK, address, "8973") == "Message too long"
        echo.kill()
        echo.wait()
        echo.stdout.close()


@needs_root
def test_a_cable_of_the_triangle_joins_its_two_nodes_and_no_third(triangle: Network) -> None:
    one, two, three = triangle.nodes
    address = str(two.rails["a"].address.ip)
    with subprocess.Popen(
        triangle.argv_in("spark2", [sys.executable, "-c", ECHO, address]), stdout=subprocess.PIPE
    ) as echo:
        assert echo.stdout is not None and echo.stdout.readline() == b"bound\n"
        assert run(triangle, "spark1", sys.executable, "-c", ASK, address, "10") == "10"
        assert "unreachable" in run(triangle, "spark3", sys.executable, "-c", ASK, address, "10")
        echo.kill()
    assert one.rails.keys() == {"a", "c"} and two.rails.keys() == {"a", "b"} and three.rails.keys() == {"b", "c"}


@needs_root
def test_a_user_on_this_machine_reaches_the_head_over_the_way_in(triangle: Network) -> None:
    address = str(triangle.gateway_address)
    with subprocess.Popen(
        triangle.argv_in("spark1", [sys.executable, "-c", ECHO, address]), stdout=subprocess.PIPE
    ) as echo:
        assert echo.stdout is not None and echo.stdout.readline() == b"bound\n"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(30)
            sock.sendto(b"hello", (address, 9))
            assert sock.recv(10) == b"5"
        echo.kill()


@needs_root
def test_two_demos_at_once_take_different_subnets(triangle: Network) -> None:
    with Network(1) as other:
        assert other.prefix != triangle.prefix
        assert other.prefix is not None and not other.prefix.overlaps(triangle.prefix)
        assert other.nodes[0].rails == {}


@needs_root
def test_close_ends_what_still_runs_and_leaves_nothing() -> None:
    before = socket.if_nameindex()
    net = Network(3)
    net.open()
    holders = [net.namespace_pid(node.name) for node in net.nodes]
    sleeper = subprocess.Popen(net.argv_in("spark2", ["sleep", "600"]), start_new_session=True)
    until(lambda: Path(f"/proc/{sleeper.pid}/comm").read_text() == "sleep\n")
    assert net.close() == []
    assert net.close() == []
    assert net.killed == [f"process {sleeper.pid} (sleep)"]
    assert sleeper.wait(60) == -signal.SIGKILL
    assert socket.if_nameindex() == before
    assert not [pid for pid in holders if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("how", ["namespaces", "loopback"])
def test_a_killed_demo_leaves_no_process_namespace_or_link(how: str) -> None:
    """Fault: SIGKILL of the demo. Effect: within seconds all it built is gone, also what left its process group."""
    if how == "namespaces" and mode().mode is not Mode.NAMESPACES:
        pytest.skip(mode().reason)
    owner_code = textwrap.dedent(f"""
        import json, subprocess, sys, time
        from dsv41_supervisor.demo.network import Mode, Network, Probe
        net = Network(3, Probe(Mode("{how}"), "test"))
        net.open()
        # A process that renames itself over its environment, as SGLang's do, below one that is still marked.
        shell = "sleep 600 & env -i sleep 600 & wait"
        inside = subprocess.Popen(net.argv_in("spark3", ["sh", "-c", shell]), start_new_session=True)
        holders = [pid for pid, _ in net._namespaces.values()]
        print(json.dumps([net.way_in, net._keeper.pid, inside.pid, *holders]), flush=True)
        time.sleep(600)
    """)
    owner = subprocess.Popen([sys.executable, "-c", owner_code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    link, *pids = json.loads(owner.stdout.readline())
    inside = pids[1]
    until(lambda: len(children(inside)) == 2)
    pids += children(inside)
    assert (link in {name for _, name in socket.if_nameindex()}) == (how == "namespaces")
    owner.kill()
    owner.wait()
    owner.stdout.close()
    until(lambda: not [pid for pid in pids if alive(pid)])
    until(lambda: link not in {name for _, name in socket.if_nameindex()})


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@needs_root
def test_a_refused_step_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(node: object) -> None:
        raise OSError(95, "Operation not supported")

    before = socket.if_nameindex()
    monkeypatch.setattr(network_module, "_set_up_node", refuse)
    net = Network(3)
    with pytest.raises(Dsv41Error, match="refused to build the demo's network: .*not supported.*Run the demo as an"):
        net.open()
    assert socket.if_nameindex() == before
    assert net._leftovers() == []


def test_without_root_nodes_are_on_loopback_and_it_says_what_that_leaves_out() -> None:
    with Network(3, LOOPBACK) as net:
        assert [str(node.management.ip) for node in net.nodes] == ["127.0.41.1", "127.0.41.2", "127.0.41.3"]
        assert run(net, "spark2", "sh", "-c", "echo $DSV41_DEMO") == net.id
        assert any(text.startswith("rails and RDMA: there are no cables") for text in net.shows_not)
    assert not any(text.startswith("rails:") for text in Network(3, Probe(Mode.NAMESPACES, "")).shows_not)


def test_the_probe_tells_an_ordinary_user_why_it_is_loopback() -> None:
    # Imported first: an ordinary user may not be able to read this interpreter's files.
    code = "import os; from dsv41_supervisor.demo.network import mode; os.getuid() or os.setuid(65534); print(*mode())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.startswith("loopback not root here: this process has no CAP_NET_ADMIN"), done.stderr


def test_a_subnet_that_overlaps_a_route_is_not_taken() -> None:
    used = [IPv4Network("0.0.0.0/0"), IPv4Network("10.41.7.0/24"), IPv4Network("10.42.0.0/15")]
    assert str(candidate_prefixes(used)[0]) == "10.44.0.0/16"
    assert candidate_prefixes([IPv4Network("10.0.0.0/8")]) == []


def test_planned_names_fit_the_kernel_and_every_cable_has_its_own_subnet() -> None:
    nodes = plan(3, IPv4Network("10.41.0.0/16"))
    ends = [(name, end) for node in nodes for name, end in node.rails.items()]
    assert all(len(end.interface) <= 15 for _, end in ends)
    assert {name: {str(e.address.network) for n, e in ends if n == name} for name, _ in ends} == {
        "a": {"10.41.12.0/24"}, "b": {"10.41.23.0/24"}, "c": {"10.41.13.0/24"},
    }  # fmt: skip
    assert all(node.rails == {} for node in plan_loopback(3))


def test_enter_says_what_is_wrong_in_one_line() -> None:
    enter = [sys.executable, "-m", "dsv41_supervisor.demo.enter"]

    def stderr(*argv: str) -> tuple[int, str]:
        done = subprocess.run([*enter, *argv], capture_output=True, text=True, timeout=30)
        return done.returncode, done.stderr

    assert stderr("--pid", "1") == (2, "usage: enter [--pid PID [--inode N]] [--mark ID] -- COMMAND [ARGUMENT …]\n")
    assert stderr("--", "/nowhere/program")[0] == 127
    code, text = stderr("--pid", str(os.getpid()), "--inode", "1", "--", "true")
    assert code == 69 and "is not the one that held this namespace" in text and text.count("\n") == 1
