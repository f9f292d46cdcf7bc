"""Three guests in QEMU, cabled as a triangle, with soft-RoCE on every rail: the kernel's own RDMA, where there is none.

Instructions are emulated, so nothing here is fast: what a figure is says nothing, that there is one says a lot.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import image
from dsv41_supervisor.demo.addresses import MANAGEMENT_INTERFACE, RAIL_MTU, NodeAddresses, plan

PREFIX = IPv4Network("10.41.0.0/16")
BOOT_S = 300
COMMAND_S = 120
MEMORY_MIB = 640
COMMAND_LINE = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=unstable audit=0 apparmor=0 net.ifnames=0 "
    "module_blacklist=kvm,kvm_amd,kvm_intel"
)


@dataclass(frozen=True)
class Cable:
    """`name` is the rail's; the management network is two cables, with the first node as their switch."""

    name: str
    number: int
    nodes: tuple[str, str]
    mtu: int

    def peer(self, node: str) -> str:
        return self.nodes[1 - self.nodes.index(node)]

    def mac(self, node: str) -> str:
        return f"52:54:01:{self.number:02x}:00:{self.nodes.index(node) + 1:02x}"


def rdma_device(interface: str) -> str:
    """As a Spark names it: enp1s0f0np0 has rocep1s0f0."""
    return "roce" + interface.removeprefix("en").rpartition("np")[0]


def cables(nodes: list[NodeAddresses]) -> list[Cable]:
    found: dict[str, Cable] = {}
    for node in nodes:
        for name, end in node.rails.items():
            if end.peer is not None and name not in found:
                found[name] = Cable(name, len(found) + 1, (node.name, end.peer), RAIL_MTU)
    first, *others = (node.name for node in nodes)
    management = [Cable(f"mgmt-{n}", 16 + n, (first, other), 1500) for n, other in enumerate(others)]
    return [*found.values(), *management]


@dataclass
class Guest:
    """One machine. `run` is what a shell on it would be."""

    addresses: NodeAddresses
    work: Path
    process: subprocess.Popen[bytes]
    line: socket.socket | None = None
    pending: bytes = b""

    @property
    def name(self) -> str:
        return self.addresses.name

    def run(
        self, *argv: str, stdin: str = "", check: bool = True, timeout_s: float = COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """A command as root, to its end."""
        self.begin(*argv, stdin=stdin, timeout_s=timeout_s)
        return self.ended(argv, check=check, timeout_s=timeout_s)

    def begin(self, *argv: str, stdin: str = "", timeout_s: float = COMMAND_S) -> None:
        """Ask for a command; `ended` waits for it. One at a time."""
        assert self.line is not None
        self.line.sendall(json.dumps({"argv": argv, "stdin": stdin, "timeout_s": timeout_s}).encode() + b"\n")

    def ended(self, argv: tuple[str, ...], check: bool, timeout_s: float) -> subprocess.CompletedProcess[str]:
        said = self._answer(timeout_s + 30, " ".join(argv))
        done = subprocess.CompletedProcess(argv, said["status"], said["stdout"], said["stderr"])
        if check and done.returncode:
            raise AssertionError(f"{self.name}: {argv} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"'
        self.run("sh", "-c", script, "sh", path, f"{mode:o}", stdin=text)

    def connect(self, deadline: float) -> None:
        """Listen to its serial line. What it says while nobody listens is lost, so this comes before it has booted."""
        self.line = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self.line.connect(str(self.work / "agent"))
                break
            except OSError:
                self._check(deadline, "its serial line")
                time.sleep(0.05)

    def booted(self, deadline: float) -> None:
        """Wait for its agent. Raises AssertionError with its console when it does not come up."""
        self._answer(max(1.0, deadline - time.monotonic()), "its start")

    def set_cable(self, cable: Cable, up: bool) -> None:
        """Carrier at this end."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(30)
            monitor.connect(str(self.work / "monitor"))
            with monitor.makefile("rw") as lines:
                lines.readline()
                for command, arguments in (
                    ("qmp_capabilities", {}), ("set_link", {"name": f"port-{cable.name}", "up": up})
                ):  # fmt: skip
                    lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
                    lines.flush()
                    while "event" in (said := json.loads(lines.readline())):
                        pass
                    assert "return" in said, said

    def console(self) -> str:
        return (self.work / "console").read_text(errors="replace")

    def _answer(self, timeout_s: float, what: str) -> dict[str, Any]:
        assert self.line is not None
        deadline = time.monotonic() + timeout_s
        while True:
            while b"\n" in self.pending:
                text, _, self.pending = self.pending.partition(b"\n")
                if text.strip().startswith(b"{"):
                    said: dict[str, Any] = json.loads(text)
                    return said
            self._check(deadline, what)
            self.line.settimeout(1)
            with contextlib.suppress(TimeoutError):
                self.pending += self.line.recv(1 << 20)

    def _check(self, deadline: float, what: str) -> None:
        if self.process.poll() is not None or time.monotonic() > deadline:
            state = "still runs" if self.process.poll() is None else f"ended with {self.process.returncode}"
            raise AssertionError(f"{self.name} gave no answer to {what}; QEMU {state}\n{self.console()[-3000:]}")


@dataclass
class Bed:
    """The three guests and their cables. Everything it starts ends with `power_off`, and nothing else does."""

    cache: Path
    work: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="dsv41-bed-")))
    nodes: list[NodeAddresses] = field(default_factory=lambda: plan(3, PREFIX))
    guests: dict[str, Guest] = field(default_factory=dict)
    cables: list[Cable] = field(init=False)

    def __post_init__(self) -> None:
        self.cables = cables(self.nodes)

    def boot(self) -> None:
        """Make the image if need be, start all three, set their networks up."""
        image.ensure(self.cache)
        programs = self.work / "programs.tar"
        image.programs(self.cache, programs)
        for node in self.nodes:
            self.guests[node.name] = self._start(node, programs)
        deadline = time.monotonic() + BOOT_S
        for guest in self.guests.values():
            guest.connect(deadline)
        for guest in self.guests.values():
            guest.booted(deadline)
        for guest in self.guests.values():
            guest.run("sh", "-ec", self._network(guest))

    def power_off(self) -> None:
        for guest in self.guests.values():
            guest.process.kill()
        for guest in self.guests.values():
            guest.process.wait(30)
            if guest.line is not None:
                guest.line.close()
        self.guests.clear()
        shutil.rmtree(self.work, ignore_errors=True)

    def cable(self, name: str) -> Cable:
        return next(cable for cable in self.cables if cable.name == name)

    @contextlib.contextmanager
    def cut(self, name: str) -> Iterator[None]:
        """A pulled cable. A datagram socket tells its other end nothing, so both are told."""
        cable = self.cable(name)
        try:
            for node in cable.nodes:
                self.guests[node].set_cable(cable, up=False)
            yield
        finally:
            for node in cable.nodes:
                self.guests[node].set_cable(cable, up=True)

    def _start(self, node: NodeAddresses, programs: Path) -> Guest:
        work = self.work / node.name
        work.mkdir()
        nics: list[str] = []
        for cable in self.cables:
            if node.name in cable.nodes:
                ends = [f"{self.work}/{cable.name}.{name}" for name in (node.name, cable.peer(node.name))]
                nics += [
                    "-netdev", f"dgram,id=cable-{cable.name},local.type=unix,local.path={ends[0]},"
                    f"remote.type=unix,remote.path={ends[1]}",
                    "-device", f"virtio-net-pci,id=port-{cable.name},netdev=cable-{cable.name},"
                    f"mac={cable.mac(node.name)},host_mtu={cable.mtu},romfile=",
                ]  # fmt: skip
        argv = [
            "qemu-system-x86_64", "-accel", "tcg,thread=multi,tb-size=192", "-machine", "q35,usb=off", "-cpu", "max",
            "-m", str(MEMORY_MIB), "-smp", "1", "-display", "none", "-nodefaults", "-no-reboot",
            "-kernel", f"{self.cache}/vmlinux", "-initrd", f"{self.cache}/initrd", "-append", COMMAND_LINE,
            "-drive", f"file={self.cache}/image,format=raw,if=virtio,cache=unsafe,snapshot=on",
            "-drive", f"file={programs},format=raw,if=virtio,readonly=on",
            "-serial", f"file:{work}/console",
            "-chardev", f"socket,id=agent,path={work}/agent,server=on,wait=off", "-serial", "chardev:agent",
            "-qmp", f"unix:{work}/monitor,server=on,wait=off",
            "-object", "rng-random,id=random,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=random", *nics,
        ]  # fmt: skip
        (work / "console").touch()
        with (work / "qemu.log").open("wb") as log:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {"TMPDIR": str(self.work)},
            )  # fmt: skip
        return Guest(node, work, process)

    def _network(self, guest: Guest) -> str:
        """A script: names, addresses and MTU as a Spark has them, and an RDMA device on each rail."""
        node = guest.addresses
        lines = [
            f"echo {node.name} > /proc/sys/kernel/hostname",
            'named() { for d in /sys/class/net/*; do read -r mac < "$d/address"; '
            'if [ "$mac" = "$1" ]; then ip link set "${d##*/}" name "$2"; fi; done; }',
        ]
        for name, end in node.rails.items():
            lines += [
                f"named {self.cable(name).mac(node.name)} {end.interface}",
                f"ip link set {end.interface} mtu {RAIL_MTU} up",
                f"ip addr add {end.address} dev {end.interface}",
                f"echo 1 > /proc/sys/net/ipv4/conf/{end.interface}/arp_ignore",
                f"echo 2 > /proc/sys/net/ipv4/conf/{end.interface}/arp_announce",
                f"rdma link add {rdma_device(end.interface)} type rxe netdev {end.interface}",
            ]
        management = [c for c in self.cables if c.name.startswith("mgmt-") and node.name in c.nodes]
        if len(management) == 1:
            lines.append(f"named {management[0].mac(node.name)} {MANAGEMENT_INTERFACE}")
        else:
            lines.append(f"ip link add {MANAGEMENT_INTERFACE} type bridge")
            for cable in management:
                port = cable.name
                lines += [f"named {cable.mac(node.name)} {port}",
                          f"ip link set {port} master {MANAGEMENT_INTERFACE} up"]  # fmt: skip
        lines += [f"ip link set {MANAGEMENT_INTERFACE} up", f"ip addr add {node.management} dev {MANAGEMENT_INTERFACE}"]
        return "\n".join(lines)
