"""The processes of one rank, and killing them by pidfd: a pid that was used again is never hit. Standard library only.

Plain classes: `dataclasses` and `typing` alone would make this process a third larger.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

_PROCESS_MRELEASE = 448
"""Same number on x86-64 and aarch64; Linux 5.15. Frees a killed process's memory without waiting for it to run."""
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_libc = ctypes.CDLL(None, use_errno=True)


class Victim:
    """One process that was killed."""

    __slots__ = ("name", "pid", "rss_bytes")

    def __init__(self, pid: int, name: str, rss_bytes: int) -> None:
        self.pid, self.name, self.rss_bytes = pid, name, rss_bytes


class _Member:
    __slots__ = ("pidfd", "rss_bytes", "start_ticks")

    def __init__(self, start_ticks: int, pidfd: int, rss_bytes: int) -> None:
        self.start_ticks, self.pidfd, self.rss_bytes = start_ticks, pidfd, rss_bytes


class Stat:
    """What is needed of /proc/PID/stat."""

    __slots__ = ("dead", "name", "parent", "rss_bytes", "session", "start_ticks")

    def __init__(self, raw: bytes) -> None:
        # The command name may hold spaces and brackets: fields are counted from the last bracket.
        end = raw.rindex(b")")
        parts = raw[end + 2 :].split()
        self.name = raw[raw.index(b"(") + 1 : end].decode(errors="replace")
        # A zombie whose other threads still end holds its memory.
        self.dead = parts[0] in (b"Z", b"X") and int(parts[17]) <= 1
        self.parent, self.session, self.start_ticks = int(parts[1]), int(parts[3]), int(parts[19])
        self.rss_bytes = int(parts[21]) * PAGE_BYTES


def read_stat(pid: int, proc_root: str = "/proc") -> Stat | None:
    """One process, or None when it is gone. Source: proc_pid_stat(5)."""
    try:
        fd = os.open(f"{proc_root}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        raw = os.read(fd, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    return Stat(raw)


def everyone(proc_root: str = "/proc") -> dict[int, Stat]:
    """Every process that can be seen, by pid."""
    table = {}
    for name in os.listdir(proc_root):
        if name.isdigit():
            stat = read_stat(int(name), proc_root)
            if stat is not None:
                table[int(name)] = stat
    return table


class Target:
    """A rank to watch: its unit's main process names it for ever by pid and start time.

    Members are the main process's session, its descendants, its unit's cgroup where it has one of its own, and whoever
    was a member before. Each is held by a pidfd that was opened before its start time was compared: a signal sent
    through it reaches that process or nobody.
    """

    def __init__(
        self, unit: str, rank: int, boot: str, pid: int, start_ticks: int, proc_root: str = "/proc",
        cgroup_root: str = "/sys/fs/cgroup",
    ) -> None:  # fmt: skip
        self.unit, self.rank, self.boot, self.pid, self.start_ticks = unit, rank, boot, pid, start_ticks
        self._proc_root, self._cgroup_root = proc_root, cgroup_root
        self._members: dict[int, _Member] = {}
        self._cgroup_procs: str | None = None
        """File that lists the processes of the unit's own cgroup; empty when it has none."""

    def to_json(self) -> dict[str, object]:
        return {
            "unit": self.unit, "rank": self.rank, "boot": self.boot, "pid": self.pid, "start_ticks": self.start_ticks,
        }  # fmt: skip

    def refresh(self) -> int:
        """Look who belongs to it; returns how many live."""
        table = everyone(self._proc_root)
        main = table.get(self.pid)
        mine = {
            pid for pid, m in self._members.items() if (s := table.get(pid)) is not None
            and s.start_ticks == m.start_ticks
        }  # fmt: skip
        ours = main is not None and main.start_ticks == self.start_ticks
        # A session outlives its leader, and its number is not given away meanwhile. But without the leader or a member
        # of it that we know, the number may be anybody's.
        if ours or any(table[pid].session == self.pid for pid in mine):
            mine |= {
                pid for pid, s in table.items()
                if (pid == self.pid or s.session == self.pid) and s.start_ticks >= self.start_ticks
            }  # fmt: skip
        if ours and self._cgroup_procs is None:
            self._cgroup_procs = self._own_cgroup()
        mine |= self._cgroup_members() & table.keys()
        grew = True
        while grew:
            found = {pid for pid, s in table.items() if s.parent in mine} - mine
            mine |= found
            grew = bool(found)
        for pid in [pid for pid in self._members if pid not in mine or table[pid].dead]:
            os.close(self._members.pop(pid).pidfd)
        for pid in mine:
            self._hold(pid, table[pid])
        return len(self._members)

    def kill(self) -> list[Victim]:
        """SIGKILL to every member, largest first; those known before a new look is taken, as a look takes time."""
        victims: dict[int, Victim] = {}
        for _ in range(3):
            self._kill_held(victims)
            before = len(victims)
            self.refresh()
            if not self._members.keys() - victims.keys() and len(victims) == before:
                break
        self._kill_held(victims)
        for pid in victims:
            member = self._members.get(pid)
            if member is not None:
                _libc.syscall(_PROCESS_MRELEASE, member.pidfd, 0)
        return list(victims.values())

    def close(self) -> None:
        for member in self._members.values():
            os.close(member.pidfd)
        self._members.clear()

    def _kill_held(self, victims: dict[int, Victim]) -> None:
        for pid, member in sorted(self._members.items(), key=lambda item: -item[1].rss_bytes):
            if pid in victims:
                continue
            with contextlib.suppress(ProcessLookupError):
                stat = read_stat(pid, self._proc_root)
                signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)
                victims[pid] = Victim(pid, stat.name if stat else "?", stat.rss_bytes if stat else member.rss_bytes)

    def _hold(self, pid: int, seen: Stat) -> None:
        member = self._members.get(pid)
        if member is not None:
            member.rss_bytes = seen.rss_bytes
            return
        if seen.dead:
            return
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        now = read_stat(pid, self._proc_root)
        if now is None or now.start_ticks != seen.start_ticks:
            os.close(fd)
            return
        self._members[pid] = _Member(seen.start_ticks, fd, seen.rss_bytes)

    def _own_cgroup(self) -> str:
        """Where the unit's cgroup lists its processes; empty when its main process is in a cgroup of another name."""
        if not self.unit.endswith(".service"):
            return ""
        try:
            with open(f"{self._proc_root}/{self.pid}/cgroup") as file:
                lines = file.read().splitlines()
        except OSError:
            return ""
        for line in lines:
            number, controllers, path = line.split(":", 2)
            if path.rsplit("/", 1)[-1] == self.unit and (number == "0" or "name=systemd" in controllers):
                procs = f"{self._cgroup_root}{'' if number == '0' else '/systemd'}{path}/cgroup.procs"
                if os.path.exists(procs):
                    return procs
        return ""

    def _cgroup_members(self) -> set[int]:
        if not self._cgroup_procs:
            return set()
        try:
            with open(self._cgroup_procs) as file:
                return {int(pid) for pid in file.read().split()}
        except (OSError, ValueError):
            return set()
