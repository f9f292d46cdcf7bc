"""ICMP echo with a source address, a size and the do-not-fragment bit: the neighbour warmed up, the MTU proven.

An unprivileged ICMP socket where the kernel allows it (net.ipv4.ping_group_range), else a raw one, else `ping`.
Blocking, for a thread.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import select
import shutil
import socket
import struct
import subprocess
import time
from dataclasses import dataclass

_IP_MTU_DISCOVER = 10
_IP_PMTUDISC_PROBE = 3
"""Do-not-fragment is set and no remembered path MTU is believed; the interface's own MTU still holds."""
_HEADERS = 20 + 8
_ECHO, _ECHO_REPLY = 8, 0


@dataclass(frozen=True, slots=True)
class Pinged:
    """`problem` is None when every echo came back."""

    sent: int
    received: int
    best_ms: float | None
    problem: str | None


def ping(
    source: str, target: str, *, packet_bytes: int = 64, count: int = 1, wait_s: float = 1.0, fragment: bool = True
) -> Pinged:
    """`count` echoes of `packet_bytes` (with IP header), one after the other, each waited for `wait_s`.

    Raises OSError only when no kind of ICMP is permitted here.
    """
    opened = _open()
    if opened is None:
        return _by_program(source, target, packet_bytes, count, wait_s, fragment)
    sock, raw = opened
    payload = secrets.token_bytes(max(0, packet_bytes - _HEADERS))
    identity = os.getpid() & 0xFFFF if raw else 0
    sent = received = 0
    best_ms: float | None = None
    problem: str | None = None
    with sock:
        try:
            if not fragment:
                sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
            sock.bind((source, 0))
            sock.connect((target, 0))
        except OSError as error:
            return Pinged(0, 0, None, _explain(error, source, target, packet_bytes))
        for sequence in range(count):
            began = time.monotonic()
            try:
                sock.send(_message(identity, sequence, payload))
                sent += 1
                if _answered(sock, raw, identity, sequence, payload, began + wait_s):
                    received += 1
                    took_ms = (time.monotonic() - began) * 1000
                    best_ms = took_ms if best_ms is None else min(best_ms, took_ms)
                else:
                    problem = f"no reply from {target} within {wait_s:g} s"
            except OSError as error:
                problem = _explain(error, source, target, packet_bytes)
    return Pinged(sent, received, best_ms, problem if received < count else None)


def _open() -> tuple[socket.socket, bool] | None:
    for kind, raw in ((socket.SOCK_DGRAM, False), (socket.SOCK_RAW, True)):
        try:
            return socket.socket(socket.AF_INET, kind | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMP), raw
        except OSError:
            continue
    return None


def _message(identity: int, sequence: int, payload: bytes) -> bytes:
    """Source: RFC 792. The kernel fills identity and checksum of an unprivileged socket by itself."""
    header = struct.pack("!BBHHH", _ECHO, 0, 0, identity, sequence)
    checksum = _checksum(header + payload)
    return struct.pack("!BBHHH", _ECHO, 0, checksum, identity, sequence) + payload


def _answered(sock: socket.socket, raw: bool, identity: int, sequence: int, payload: bytes, until_s: float) -> bool:
    """Whether our echo came back unchanged before `until_s`; everything else that arrives is dropped."""
    while (left_s := until_s - time.monotonic()) > 0:
        readable, _, _ = select.select([sock], [], [], left_s)
        if not readable:
            return False
        answer = sock.recv(65535)
        if raw:
            answer = answer[(answer[0] & 0x0F) * 4 :]
        if len(answer) < 8:
            continue
        kind, _, _, who, number = struct.unpack("!BBHHH", answer[:8])
        mine = number == sequence and (not raw or who == identity)
        if kind == _ECHO_REPLY and mine and answer[8:] == payload:
            return True
    return False


def _checksum(message: bytes) -> int:
    if len(message) % 2:
        message += b"\0"
    total = sum(struct.unpack(f"!{len(message) // 2}H", message))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _explain(error: OSError, source: str, target: str, packet_bytes: int) -> str:
    if error.errno == errno.EMSGSIZE:
        return f"the sending interface does not take packets of {packet_bytes} bytes"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{source} is not an address of this node"
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return f"there is no way from {source} to {target}"
    return f"{os.strerror(error.errno or 0)}"


def _by_program(source: str, target: str, packet_bytes: int, count: int, wait_s: float, fragment: bool) -> Pinged:
    program = shutil.which("ping")
    if program is None:
        raise OSError(errno.EPERM, "ICMP is not permitted here and there is no ping program")
    argv = [program, "-n", "-q", "-I", source, "-c", str(count), "-i", "0.2", "-W", f"{wait_s:g}"]
    argv += ["-s", str(packet_bytes - _HEADERS), *([] if fragment else ["-M", "do"]), target]
    limit_s = count * (wait_s + 0.2) + 2
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s, env={"LC_ALL": "C"})
    except subprocess.TimeoutExpired:
        return Pinged(count, 0, None, f"{program} did not end within {limit_s:g} s")
    return parse_ping(done.stdout + done.stderr, target, packet_bytes)


def parse_ping(text: str, target: str, packet_bytes: int) -> Pinged:
    """What iputils' ping says with -q."""
    counts = re.search(r"(\d+) packets transmitted, (\d+) (?:packets )?received", text)
    times = re.search(r"= (\d+(?:\.\d+)?)/", text)
    sent, received = (int(counts.group(1)), int(counts.group(2))) if counts else (0, 0)
    problem = None
    if "message too long" in text.lower():
        problem = f"the sending interface does not take packets of {packet_bytes} bytes"
    elif not sent or received < sent:
        last = [line for line in text.splitlines() if line.startswith("ping:")]
        problem = last[-1].removeprefix("ping: ") if last and not sent else f"no reply from {target}"
    return Pinged(sent, received, float(times.group(1)) if times else None, problem)
