"""Made-up /proc trees of a node, to be damaged by one thing each."""

from __future__ import annotations

import os
from pathlib import Path

MEMINFO = {
    "MemTotal": 127_000_000,
    "MemFree": 118_000_000,
    "MemAvailable": 121_000_000,
    "Buffers": 31_000,
    "Cached": 3_100_000,
    "SwapTotal": 16_000_000,
    "SwapFree": 16_000_000,
    "CmaTotal": 262_144,
    "CmaFree": 201_000,
}
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.173.02  Release Build  (builder@host)  Wed Jan  7\n"
)
PROPRIETARY = "NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.173.02  Release Build  Wed Jan  7\n"
TCP_HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def meminfo(**changes: int) -> str:
    return "".join(f"{name}: {kb:>12} kB\n" for name, kb in {**MEMINFO, **changes}.items())


def proc_tree(root: Path, **memory: int) -> Path:
    """A small /proc: memory, kernel, mounts, no process and no GPU."""
    write(root / "meminfo", meminfo(**memory))
    write(root / "cmdline", "root=/dev/nvme0n1p2 ro kho=off\n")
    write(root / "sys/kernel/osrelease", "6.17.0-1031-nvidia\n")
    write(root / "sys/vm/max_map_count", "65530\n")
    write(root / "sys/vm/overcommit_memory", "0\n")
    write(root / "sys/fs/aio-max-nr", "65536\n")
    write(
        root / "self/mountinfo",
        "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
        "30 22 0:45 / /models rw,relatime - nfs4 192.0.2.1:/models rw,vers=4.2\n"
        "31 22 0:46 / /with\\040space rw - ext4 /dev/sdb1 rw\n",
    )
    write(root / "net/tcp", TCP_HEAD)
    return root


def add_process(
    root: Path, pid: int, name: str, *, parent: int = 1, session: int | None = None, argv: str = ""
) -> Path:
    """A process; returns its folder, to put open files into."""
    folder = root / str(pid)
    write(folder / "stat", f"{pid} ({name}) S {parent} {pid} {pid if session is None else session} 0 -1 " + "0 " * 44)
    (folder / "cmdline").write_bytes((argv or name).replace(" ", "\0").encode() + b"\0")
    (folder / "fd").mkdir()
    return folder


def hold(process: Path, *targets: str) -> None:
    """Open files of a process."""
    for number, target in enumerate(targets, start=3):
        os.symlink(target, process / "fd" / str(number))


def listen(root: Path, port: int, inode: int) -> None:
    """One listening socket in the table of the namespace."""
    rest = f"00000000:00000000 00:00000000 00000000     0        0 {inode} 1"
    with (root / "net/tcp").open("a") as file:
        file.write(f"   0: 00000000:{port:04X} 00000000:0000 0A {rest}\n")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
