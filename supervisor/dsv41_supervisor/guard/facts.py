"""What else is true of this machine's memory: who kills besides us, what the kernel says, who holds most."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque

from .target import everyone

OTHER_KILLERS = (
    # Program, what it is called, what to do. Source: users.md M3 (tonyV#31, bbl preflight, mia2x README, play).
    ("earlyoom", "earlyoom", "Stop it, or let it spare the engine: --avoid '(^|/)(python3|sglang)'."),
    ("systemd-oomd", "systemd-oomd", "Set ManagedOOMPreference=omit on the rank's unit, or stop systemd-oomd."),
    ("nohang", "nohang", "Stop it, or give the engine a bad-word exception in nohang.conf."),
    ("dgx-anti-oom", "dgx-anti-oom", "Stop it: two guards with two floors kill twice."),
    ("raylet", "Ray's memory monitor", "Set RAY_memory_monitor_refresh_ms=0: it kills at 95 % by default."),
)
INTERPRETERS = ("python", "sh", "bash", "dash", "busybox", "perl")
NO_MEMORY = b"NV_ERR_NO_MEMORY"
"""The driver could not get memory (0x51): the first of these is the last warning (open-gpu-kernel-modules#1358)."""
OOM_KILL = (b"Out of memory: Killed process", b"oom-kill:", b"Memory cgroup out of memory")
NOTABLE = (b"NVRM", b"Xid", b"Out of memory", b"oom-kill", b"AER:", b"mlx5_core", b"soft lockup", b"hung_task")
N_NOTABLE = 200


def other_killers(proc_root: str = "/proc") -> list[dict[str, object]]:
    """Programs on this machine that kill processes for memory too, each with what to do about it."""
    found = []
    for name in os.listdir(proc_root):
        if not name.isdigit():
            continue
        programs = programs_of(f"{proc_root}/{name}")
        for word, called, hint in OTHER_KILLERS:
            if any(program == word or program.startswith(word + ".") for program in programs):
                found.append({"name": called, "pid": int(name), "hint": hint})
    return found


def programs_of(proc_dir: str) -> set[str]:
    """What a process is by name: its executable, its own name for itself, and the script that an interpreter runs.

    Other arguments are what it works on: `grep earlyoom` and an editor of earlyoom's configuration kill nobody.
    """
    argv = _read(f"{proc_dir}/cmdline").split("\0")
    names = {_read(f"{proc_dir}/comm").rstrip("\n") or os.path.basename(argv[0])}
    with contextlib.suppress(OSError):
        # Of one's own processes only; the others' names have to do.
        names.add(os.path.basename(os.readlink(f"{proc_dir}/exe").removesuffix(" (deleted)")))
    if any(name.rstrip("0123456789.") in INTERPRETERS for name in names):
        names.add(os.path.basename(_script(argv)))
    # nixpkgs keeps a program that it wraps as .NAME-wrapped beside the wrapper.
    return {n[1:].split("-wrap", 1)[0] if n.startswith(".") else n for n in names}


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(4096).decode(errors="replace")
    except OSError:
        return ""


def _script(argv: list[str]) -> str:
    """The file that an interpreter runs; empty for a module or a command given in words."""
    for word in argv[1:]:
        if not word.startswith("-"):
            return word
        if not word.startswith("--") and word[-1:] in ("c", "m", "e"):
            return ""
    return ""


def largest(n: int = 8, proc_root: str = "/proc") -> list[dict[str, object]]:
    """Who holds most memory, by resident set."""
    table = sorted(everyone(proc_root).items(), key=lambda item: -item[1].rss_bytes)
    return [{"pid": pid, "name": stat.name, "rss_bytes": stat.rss_bytes} for pid, stat in table[:n]]


class Kmsg:
    """The kernel's log from now on: counts NV_ERR_NO_MEMORY and OOM kills, and keeps lines worth a bundle.

    Source: dev-kmsg ABI: one record a read; EPIPE means that records were lost. Needs CAP_SYSLOG where the kernel
    restricts dmesg.
    """

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self.n_no_memory = 0
        self.n_oom_kills = 0
        self.n_lost = 0
        self.last_oom_kill = ""
        self.notable: deque[str] = deque(maxlen=N_NOTABLE)
        self.missing: str | None = None
        self.fd = -1
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self.fd, 0, os.SEEK_END)
        except OSError as error:
            if error.errno == errno.ESPIPE and self.fd >= 0:
                return  # a pipe has no end to go to
            self.missing = f"{path}: {error.strerror}"

    def read(self, most: int = 1000) -> None:
        """Take in what is new; at most so many records, so that a kernel that floods cannot hold the guard."""
        if self.fd < 0:
            return
        for _ in range(most):
            try:
                record = os.read(self.fd, 8192)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:
                    self.n_lost += 1
                    continue
                return
            if not record:
                return
            for line in record.splitlines():
                self.feed(line)

    def feed(self, line: bytes) -> None:
        """One line of a record; `priority,sequence,time,flags;text`, or the text alone."""
        text = line.split(b";", 1)[-1]
        if NO_MEMORY in text:
            self.n_no_memory += 1
        if any(mark in text for mark in OOM_KILL):
            self.n_oom_kills += 1
            self.last_oom_kill = text.decode(errors="replace")[:300]
        if any(mark in text for mark in NOTABLE):
            self.notable.append(text.decode(errors="replace")[:300])
