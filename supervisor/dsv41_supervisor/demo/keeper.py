"""Holds the demo's network namespaces, and ends what is left in them when the demo is gone. Standard library only.

Runs as `python -I -S keeper.py N MARK`: one small process that forks N children, each alone in a network namespace
of its own, with a /dev/shm of its own. Its standard input is a pipe whose other end the demo holds. When that end
closes, however the demo ended (SIGKILL too), every process in those namespaces or with `DSV41_DEMO=MARK` in its
environment is killed and the children end; with them the kernel removes the namespaces, and all links in them with
their peers. Nothing has a name in the file system, so nothing can be left there.

Speaks JSON lines on standard output: {"pids": […]} when ready, {"killed": [[pid, name], …]} when done.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time

MARK = "DSV41_DEMO"
_CLONE_NEWNET = 0x40000000
_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 0x4000 | 1 << 18
_SHARED_MEMORY = b"/dev/shm"
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(argv: list[str]) -> int:
    n_namespaces, mark = int(argv[0]), argv[1]
    # Ctrl-C goes to the whole foreground group: the demo decides when we stop, by closing the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    _name("dsv41-keeper")
    pids: list[int] = []
    try:
        for _ in range(n_namespaces):
            pids.append(_holder())
    except OSError as error:
        print(json.dumps({"error": error.strerror, "errno": error.errno}), flush=True)
        _end(pids)
        return 1
    inodes = {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in pids}
    print(json.dumps({"pids": pids}), flush=True)
    with contextlib.suppress(_Stop):
        while os.read(0, 4096):
            pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    killed = _kill_members(inodes, mark, spare={os.getpid(), os.getppid(), *pids})
    _end(pids)
    with contextlib.suppress(OSError):  # the reader is gone when the demo was killed
        os.write(1, json.dumps({"killed": killed}).encode() + b"\n")
    return 0


class _Stop(Exception):
    pass


def _stop(*_: object) -> None:
    raise _Stop


def _unshare() -> int:
    """Leave the machine's network, and its shared memory with it. Returns an errno, or 0.

    SGLang takes ranks that share /dev/shm for ranks of one machine and then talks to them on 127.0.0.1
    (parallel_state.py in_the_same_node_as), which is another one in each namespace: every rank would hang. So each
    node gets a /dev/shm of its own, as a machine has. The mounts are seen in this namespace only and go with it.
    """
    for failed in (
        lambda: _LIBC.unshare(_CLONE_NEWNET | _CLONE_NEWNS),
        lambda: _LIBC.mount(b"none", b"/", None, _MS_REC_PRIVATE, None),
        lambda: _LIBC.mount(b"tmpfs", _SHARED_MEMORY, b"tmpfs", 0, b"mode=1777"),
    ):
        if failed():
            return ctypes.get_errno()
    return 0


def _holder() -> int:
    """Fork a child into namespaces of its own. Returns when it is in. Raises OSError when the kernel refuses."""
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            refused = _unshare()
            _name("dsv41-netns")
            os.write(writer, bytes([refused]))
            if refused or os.getppid() != parent:
                os._exit(1)
            for fd in (0, 1, reader, writer):
                os.close(fd)
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader, "rb", buffering=0) as pipe:
        answer = pipe.read(1)
    if answer != b"\0":
        os.waitpid(pid, 0)
        number = answer[0] if answer else 1
        raise OSError(number, os.strerror(number))
    return pid


def _end(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _kill_members(inodes: set[int], mark: str, spare: set[int]) -> list[tuple[int, str]]:
    """Kill until a whole look finds nobody: a process may fork while we kill. Gives up after ten seconds."""
    killed: dict[int, str] = {}
    deadline = time.monotonic() + 10
    while (found := members(inodes, mark, spare)) and time.monotonic() < deadline:
        for pid, name in found.items():
            killed.setdefault(pid, name)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return sorted(killed.items())


def members(inodes: set[int], mark: str, spare: set[int]) -> dict[int, str]:
    """Living processes in one of these namespaces, with the mark in their environment, or started by such a one.

    SGLang's processes rename themselves over their environment, so the mark alone would miss them: a session whose
    leader is marked counts as a whole, and so do descendants.
    """
    table: dict[int, tuple[int, int, str]] = {}
    found: set[int] = set()
    wanted = f"{MARK}={mark}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        pid = int(entry)
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                head, _, tail = file.read().decode(errors="replace").rpartition(") ")
            state, parent, _, session = tail.split()[:4]
            if state in "ZX":
                continue
            table[pid] = int(parent), int(session), head.partition("(")[2]
            if inodes and os.stat(f"/proc/{pid}/ns/net").st_ino in inodes:
                found.add(pid)
                continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.add(pid)
        except OSError:
            continue
    grew = True
    while grew:
        more = {
            pid
            for pid, (parent, session, _) in table.items()
            if pid not in found and pid not in spare and (parent in found or session in found)
        }
        grew = bool(more)
        found |= more
    return {pid: table[pid][2] for pid in found - spare if pid in table}


def _name(name: str) -> None:
    _LIBC.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
