"""Run a command on a node of the demo: `python -m dsv41_supervisor.demo.enter --pid PID -- COMMAND …`.

Enters the network and mount namespaces of the process PID (each node has a /dev/shm of its own) and becomes COMMAND.
Standard library only and run with `-I -S`, because every process of the demo starts through it.
"""

from __future__ import annotations

import ctypes
import os
import sys

_CLONE_NEWNET = 0x40000000
_CLONE_NEWNS = 0x00020000
_USAGE = "usage: enter [--pid PID [--inode N]] [--mark ID] -- COMMAND [ARGUMENT …]"
EXIT_UNAVAILABLE = 69


def enter_network_of(pid: int, inode: int | None = None) -> None:
    """Put this thread into the network namespace of another process. Raises OSError.

    `inode` guards against a PID that has been used again: it must be the namespace's own number.
    """
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if inode is not None and os.fstat(fd).st_ino != inode:
            raise ProcessLookupError(f"process {pid} is not the one that held this namespace")
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), f"/proc/{pid}/ns/net")
    finally:
        os.close(fd)


def enter_mounts_of(pid: int) -> None:
    """Put this process into the mount namespace of another one, and stay in the same directory. Raises OSError."""
    here = os.getcwd()
    fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, _CLONE_NEWNS):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), f"/proc/{pid}/ns/mnt")
    finally:
        os.close(fd)
    os.chdir(here)


def main(argv: list[str]) -> int:
    options: dict[str, str] = {}
    while argv and argv[0] != "--":
        if argv[0] not in ("--pid", "--inode", "--mark") or len(argv) < 2:
            print(_USAGE, file=sys.stderr)
            return 2
        options[argv[0]] = argv[1]
        argv = argv[2:]
    command = argv[1:]
    if not command:
        print(_USAGE, file=sys.stderr)
        return 2
    if "--mark" in options:
        os.environ["DSV41_DEMO"] = options["--mark"]
    try:
        if "--pid" in options:
            inode = int(options["--inode"]) if "--inode" in options else None
            enter_network_of(int(options["--pid"]), inode)
            enter_mounts_of(int(options["--pid"]))
    except OSError as error:
        print(
            f"enter: cannot enter the network of process {options['--pid']}: {error.strerror or error}. "
            "Start the demo (dsv41 demo), and be root as it is.",
            file=sys.stderr,
        )
        return EXIT_UNAVAILABLE
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"enter: cannot run {command[0]}: {error.strerror}. Name a program that exists.", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
