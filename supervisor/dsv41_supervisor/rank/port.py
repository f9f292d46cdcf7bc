"""The port of this node's engine: whether it is free, and who holds it when it is not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "127.0.0.1"
FREE_S = 15.0
"""A process that was killed lets go of its port only when all its memory is given back."""
SAY_AFTER_S = 1.0
LIVING_S = 3.0
"""A holder that goes on living for this long is not on its way out: waiting for it helps nobody."""
_LISTENS = "0A"
# Source: proc(5), /proc/net/tcp: addresses are words of 32 bits in the machine's order, which is little-endian here.
_IN_THE_WAY = {"0100007F", "00000000", "0" * 32, "0000000000000000FFFF00000100007F"}
_N_WORDS = 4
_N_CHARACTERS = 80
_SECRET = re.compile(r"key|token|secret|passw", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a port, in words. `pid` is None where it cannot be told; `living`: it does not look like ending."""

    words: str
    pid: int | None = None
    living: bool = False


def is_free(port: int) -> bool:
    """Whether the engine could listen. Asked by binding: a connection would be seen by whoever holds the port."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


async def becomes_free(port: int, waits: Callable[[str | None], None]) -> Holder | None:
    """None once the port is free; who holds it when it does not become so. `waits` hears what is waited for."""
    began_s = time.monotonic()
    said = False
    try:
        while not is_free(port):
            waited_s = time.monotonic() - began_s
            if waited_s > SAY_AFTER_S:
                holder = await asyncio.to_thread(holder_of, port)
                if waited_s > FREE_S or (holder.living and waited_s > LIVING_S):
                    return holder
                waits(f"port {port}, held by {holder.words}")
                said = True
            await asyncio.sleep(0.1 if waited_s < SAY_AFTER_S else 0.5)
        return None
    finally:
        if said:
            waits(None)


def holder_of(port: int, proc: Path = Path("/proc")) -> Holder:
    """Who listens where the engine would; says so when that may not be looked at."""
    users = _listening(port, proc)
    if not users:
        return Holder("a socket that nobody listens on")
    pid, n_denied = _owner(set(users), proc)
    if pid is not None:
        return Holder(f"{_command(pid, proc)} (pid {pid})", pid, _lives(pid, proc))
    if n_denied:
        name = _user(next(iter(users.values())))
        return Holder(f"a process of user {name}, which this supervisor may not look into", living=True)
    return Holder("a process that cannot be seen; it may be ending")


def _listening(port: int, proc: Path) -> dict[str, int]:
    """Sockets by inode that are in the engine's way, with the user each belongs to."""
    found = {}
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / table).read_text().splitlines()[1:]:
                fields = line.split()
                address, _, number = fields[1].partition(":")
                if fields[3] == _LISTENS and int(number, 16) == port and address in _IN_THE_WAY:
                    found[fields[9]] = int(fields[7])
    return found


def _owner(inodes: set[str], proc: Path) -> tuple[int | None, int]:
    """The process that has one of these sockets open, and how many processes could not be looked into."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    n_denied = 0
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        try:
            for fd in os.listdir(proc / name / "fd"):
                with contextlib.suppress(FileNotFoundError):
                    if os.readlink(proc / name / "fd" / fd) in wanted:
                        return int(name), n_denied
        except PermissionError:
            n_denied += 1
        except OSError:
            continue  # Gone meanwhile.
    return None, n_denied


def _command(pid: int, proc: Path) -> str:
    """Its first words; none that may be a secret or follows one."""
    try:
        argv = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "a process that has just ended"
    words = []
    for word in filter(None, argv[:_N_WORDS]):
        if _SECRET.search(word):
            words.append("…")
            break
        words.append(word)
    text = " ".join(words) or "a process without a name"
    return text if len(text) <= _N_CHARACTERS else f"{text[: _N_CHARACTERS - 1]}…"


def _lives(pid: int, proc: Path) -> bool:
    """A process that ends gives its memory back first, and has none while it still holds its sockets."""
    try:
        return int((proc / str(pid) / "statm").read_text().split()[0]) > 0
    except (OSError, ValueError, IndexError):
        return False


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
