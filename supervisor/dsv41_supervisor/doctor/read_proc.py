"""Facts from /proc and /sys: memory, kernel, driver, processes, ports, mounts. Each reader takes the root it reads."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..guard.facts import other_killers
from ..guard.memory import parse_meminfo
from .facts import MAX_ROWS, GpuDriver, Kernel, Memory, Port, Process

PROC = Path("/proc")
SYS = Path("/sys")

SYSCTLS = (
    "vm.swappiness", "vm.min_free_kbytes", "vm.overcommit_memory", "vm.max_map_count", "fs.aio-max-nr",
    "kernel.numa_balancing",
)  # fmt: skip

_MEMINFO = {
    "MemTotal": "total",
    "MemFree": "free",
    "MemAvailable": "available",
    "Cached": "cached",
    "SwapTotal": "swap_total",
    "SwapFree": "swap_free",
    "CmaTotal": "cma_total",
    "CmaFree": "cma_free",
}


def read_memory(proc: Path = PROC) -> Memory:
    """Raises ValueError when a line that every kernel has is missing."""
    fields = parse_meminfo((proc / "meminfo").read_bytes())
    missing = {"MemTotal", "MemFree", "MemAvailable"} - set(fields)
    if missing:
        raise ValueError(f"{proc / 'meminfo'} lacks {', '.join(sorted(missing))}")
    return Memory(**{ours: fields[theirs] for theirs, ours in _MEMINFO.items() if theirs in fields})


def read_kernel(proc: Path = PROC, sys: Path = SYS) -> Kernel:
    sysctls = {}
    for name in SYSCTLS:
        path = proc / "sys" / name.replace(".", "/", 1)
        try:
            sysctls[name] = " ".join(path.read_text().split())
        except OSError:
            continue  # This kernel does not have it; what needs it says so.
    return Kernel(
        release=(proc / "sys/kernel/osrelease").read_text().strip(),
        command_line=(proc / "cmdline").read_text().strip()[:4096],
        sysctls=sysctls,
        cppc_autonomous=_cppc_autonomous(sys),
    )


def _cppc_autonomous(sys: Path) -> bool | None:
    """Source: the module parameter of cppc_cpufreq that nixos-dgx-spark sets (users.md M13)."""
    try:
        return (sys / "module/cppc_cpufreq/parameters/auto_sel_mode").read_text().strip() in ("1", "Y")
    except OSError:
        return None


def read_gpu_driver(proc: Path = PROC) -> GpuDriver | None:
    """None without an NVIDIA driver.

    Source: the first line of /proc/driver/nvidia/version: "NVIDIA UNIX Open Kernel Module for <machine>  <version>"
    for the open module, "NVIDIA UNIX <machine> Kernel Module  <version>" for the proprietary one.
    """
    try:
        text = (proc / "driver/nvidia/version").read_text()
    except FileNotFoundError:
        return None
    first = text.splitlines()[0] if text.strip() else ""
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)*)\b", first)
    is_open = True if "Open Kernel Module" in first else False if "Kernel Module" in first else None
    return GpuDriver(version=found.group(1) if found else "unknown", open_module=is_open)


@dataclass(frozen=True, slots=True)
class Running:
    """One process: name as the kernel has it, parent, session."""

    pid: int
    name: str
    parent: int
    session: int


def read_processes(proc: Path = PROC) -> dict[int, Running]:
    table = {}
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        try:
            raw = (proc / entry / "stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The name may hold spaces and brackets: fields are counted from the last bracket.
        first, last = raw.index(b"(") + 1, raw.rindex(b")")
        fields = raw[last + 2 :].split()
        name = raw[first:last].decode(errors="replace")
        table[int(entry)] = Running(int(entry), name, int(fields[1]), int(fields[3]))
    return table


def read_killers(proc: Path = PROC) -> tuple[Process, ...]:
    """Programs that kill by memory pressure and know nothing of ranks; `why` is what to do about each."""
    return tuple(
        Process(pid=int(str(found["pid"])), name=str(found["name"]), why=str(found["hint"])[:300])
        for found in other_killers(str(proc))
    )


def gpu_users(processes: Mapping[int, Running], ours: Collection[int], proc: Path = PROC) -> tuple[Process, ...]:
    """Processes of others that hold a compute device of the GPU open."""
    found = []
    for pid, running in processes.items():
        if pid in ours:
            continue
        devices = {target for target in _open_files(proc, pid) if re.fullmatch(r"/dev/nvidia(\d+|-uvm)", target)}
        if devices:
            found.append(Process(pid=pid, name=running.name, why=f"holds {', '.join(sorted(devices))}"))
    return tuple(found[:MAX_ROWS])


def supervisors(processes: Mapping[int, Running], proc: Path = PROC) -> set[int]:
    """Processes that are a `dsv41 supervisor`, by what they were started with: anybody may read that."""
    found = set()
    for pid in processes:
        try:
            words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        for word, after in zip(words, words[1:], strict=False):
            program = word.rsplit(b"/", 1)[-1]
            if after == b"supervisor" and program in (b"dsv41", b".dsv41-wrapped", b"dsv41_supervisor"):
                found.add(pid)
    return found


def n_unseen(processes: Mapping[int, Running], proc: Path = PROC) -> int:
    """Processes whose open files we may not read: whoever holds a GPU among them is not seen."""
    n = 0
    for pid in processes:
        try:
            os.listdir(proc / str(pid) / "fd")
        except PermissionError:
            n += 1
        except OSError:
            continue  # Gone meanwhile.
    return n


def read_ports(
    wanted: Iterable[tuple[str, int]],
    processes: Mapping[int, Running],
    ours: Collection[int],
    proc: Path = PROC,
) -> tuple[Port, ...]:
    """Who listens on each port of `wanted` (purpose, port) in this network namespace."""
    listening: dict[int, list[str]] = {}
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A":
                listening.setdefault(int(fields[1].rsplit(":", 1)[1], 16), []).append(fields[9])
    wanted = list(wanted)
    inodes = {inode for _, port in wanted for inode in listening.get(port, ())}
    holders = _socket_holders(inodes, processes, proc) if inodes else {}
    ports = []
    for purpose, port in wanted:
        if port not in listening:
            ports.append(Port(purpose=purpose, port=port))
            continue
        pids = [holders[inode] for inode in listening[port] if inode in holders]
        pid = pids[0] if pids else 0
        name = processes[pid].name if pid in processes else "a process that cannot be seen"
        holder = Process(pid=pid, name=name, why=f"listens on {port}")
        ports.append(Port(purpose=purpose, port=port, holder=holder, ours=pid in ours))
    return tuple(ports)


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo."""

    mount_point: str
    filesystem: str
    source: str


def read_mounts(proc: Path = PROC) -> list[Mount]:
    """Every mount of this process's namespace, in order. Source: proc(5), /proc/pid/mountinfo."""
    mounts = []
    for line in (proc / "self/mountinfo").read_text().splitlines():
        left, separator, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if separator and len(fields) > 4 and len(rest) > 1:
            mounts.append(Mount(_unescape(fields[4]), rest[0], _unescape(rest[1])))
    return mounts


def mount_of(path: str, mounts: Iterable[Mount], real: Callable[[str], str] = os.path.realpath) -> Mount | None:
    """The mount that a path is on: the longest mount point above it, the last one where two are alike."""
    path = real(path)
    best: Mount | None = None
    for mount in mounts:
        point = mount.mount_point
        above = path == point or path.startswith(point.rstrip("/") + "/")
        if above and (best is None or len(point) >= len(best.mount_point)):
            best = mount
    return best


def descendants(processes: Mapping[int, Running], roots: Collection[int]) -> set[int]:
    """`roots` and everything they started: by parent, or by session when the parent is gone."""
    children: dict[int, list[int]] = {}
    for running in processes.values():
        children.setdefault(running.parent, []).append(running.pid)
    found: set[int] = set()
    todo = list(roots) + [p.pid for p in processes.values() if p.session in roots]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return found


def _open_files(proc: Path, pid: int) -> list[str]:
    targets = []
    try:
        for fd in os.listdir(proc / str(pid) / "fd"):
            try:
                targets.append(os.readlink(proc / str(pid) / "fd" / fd))
            except OSError:
                continue
    except OSError:
        pass  # Gone, or not ours to look into.
    return targets


def _socket_holders(inodes: Collection[str], processes: Mapping[int, Running], proc: Path) -> dict[str, int]:
    holders: dict[str, int] = {}
    for pid in processes:
        for target in _open_files(proc, pid):
            if target.startswith("socket:["):
                inode = target[8:-1]
                if inode in inodes:
                    holders.setdefault(inode, pid)
        if len(holders) == len(inodes):
            break
    return holders


def _unescape(text: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), text)
