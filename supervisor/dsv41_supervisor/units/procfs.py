"""Facts about processes from /proc: parent, session, state, start time, memory."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Proc:
    pid: int
    parent: int
    session: int
    state: str
    start_ticks: int
    n_threads: int = 1

    @property
    def dead(self) -> bool:
        """Nothing of it runs. A zombie whose other threads still end holds its memory and its sockets."""
        return self.state in "ZX" and self.n_threads <= 1


def read(pid: int) -> Proc | None:
    """One process, or None when it is gone. Source: proc(5), /proc/pid/stat."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            raw = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may hold spaces and brackets: fields are counted from the last bracket.
    parts = raw[raw.rindex(b")") + 2 :].split()
    return Proc(pid, int(parts[1]), int(parts[3]), parts[0].decode(), int(parts[19]), int(parts[17]))


def start_time(pid: int) -> int | None:
    """Start time in clock ticks since boot; with the pid it names one process for ever. None for a dead one."""
    proc = read(pid)
    return None if proc is None or proc.dead else proc.start_ticks


def pid_is(table: Mapping[int, Proc], pid: int, start_ticks: int) -> bool:
    """Whether a pid is still the process that started then."""
    return pid in table and table[pid].start_ticks == start_ticks and not table[pid].dead


def processes() -> dict[int, Proc]:
    """Every process that can be seen, by pid."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            proc = read(int(name))
            if proc is not None:
                table[proc.pid] = proc
    return table


def descendants(root: int) -> list[int]:
    """Living processes that `root` started, or that those started."""
    table = processes()
    return sorted(pid for pid in _below(table, root) if not table[pid].dead)


def inner_pids(root: int) -> dict[int, int]:
    """Processes below `root` that live in a PID namespace of their own: what each calls itself there, to its pid here.

    Source: NSpid in proc_pid_status(5), outermost first.
    """
    table = processes()
    found = _below(table, root)
    depth = len(_ns_pids(os.getpid()))
    inside = ((pid, _ns_pids(pid)) for pid in sorted(found) if not table[pid].dead)
    return {pids[-1]: pid for pid, pids in inside if len(pids) > depth}


def _below(table: Mapping[int, Proc], root: int) -> set[int]:
    found, grew = {root}, True
    while grew:
        more = {p.pid for p in table.values() if p.parent in found} - found
        found |= more
        grew = bool(more)
    return found - {root}


def _ns_pids(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("NSpid:"):
                    return [int(word) for word in line.split()[1:]]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return []


def named_descendants(root: int, names: Container[str]) -> list[tuple[int, str]]:
    """Living processes that `root` started, or that those started, with one of these names (at most 15 characters)."""
    table = processes()
    named = []
    for pid in sorted(_below(table, root)):
        try:
            with open(f"/proc/{pid}/comm") as file:
                name = file.read().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name in names and not table[pid].dead:
            named.append((pid, name))
    return named


def rss_bytes(pid: int) -> int:
    """Resident memory of one process; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0


def memory_available_bytes(path: str = "/proc/meminfo") -> int:
    """MemAvailable, never MemFree: page cache can be given back."""
    with open(path) as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"{path} has no MemAvailable line")
