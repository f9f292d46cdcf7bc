"""The guard's process: look, warn, kill, tell. One thread, one loop, no file written. Standard library only.

It talks over a Unix socket, one JSON object a message (SOCK_SEQPACKET). The supervisor says `configure` and `watch`;
the guard says `hello` (to whoever connects), `sample` each second, and `warning`, `killed`, `fact` when they happen.
A `killed` is sent before the signal is: whoever sees the rank's death can already read why.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections import deque

from . import facts
from .memory import CgroupMemory, Least, SystemMemory, kho_bug, pressure
from .target import Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FORMAT = 1
MAX_MESSAGE_BYTES = 64 << 10
SAMPLE_FIELDS = ("at", "available", "free", "cached", "swap_free", "psi_some", "psi_full")
N_SAMPLES = 300
"""Five minutes, kept for a supervisor that comes back."""
FASTEST_FILL_BYTES_PER_S = 8 << 30
"""Guess, four times what one allocating process was seen to take here; decides how often to look near the floor."""
SHORTEST_S = 0.02
REFRESH_S = 5.0
KILLERS_S = 60.0
_MCL_CURRENT, _MCL_FUTURE = 1, 2
N_RAISED = 3


class Guard:
    """See the module's docstring. `config` as in `configure`."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.proc_root = str(config.get("proc_root", "/proc"))
        self._memory = SystemMemory(self.proc_root)
        self._source: Least = Least([self._memory])
        self._psi_fd = -1
        with contextlib.suppress(OSError):
            self._psi_fd = os.open(f"{self.proc_root}/pressure/memory", os.O_RDONLY | os.O_CLOEXEC)
        self.kmsg = facts.Kmsg(str(config.get("kmsg", "/dev/kmsg")))
        self.samples: deque[list[float]] = deque(maxlen=N_SAMPLES)
        self.target: Target | None = None
        self.last_kill: dict[str, Any] | None = None
        self.facts: dict[str, Any] = {"kmsg_missing": self.kmsg.missing, "killers": [], "kho": None, "unreadable": 0}
        self._said_low = False
        self._said_pressure = False
        self._said_no_memory = 0
        self._said_oom = 0
        self._killed: Target | None = None
        self._clients: dict[int, socket.socket] = {}
        self._due = dict.fromkeys(("sample", "refresh", "killers"), 0.0)
        self._alone_since_s = time.monotonic()
        self.configure(config)

    # -- what it is told ---------------------------------------------------------------------------------------------

    def configure(self, config: dict[str, Any]) -> None:
        """Floor, warning and period; `cgroup_dir` adds a cgroup's limit to what is looked at."""
        self.floor_bytes = int(config["floor_bytes"])
        self.warn_bytes = int(config["warn_bytes"])
        self.period_s = float(config["period_s"])
        self.exit_alone_s = config.get("exit_alone_s")
        cgroup = config.get("cgroup_dir")
        self._source = Least([self._memory, *([CgroupMemory(str(cgroup))] if cgroup else [])])

    def watch(self, what: dict[str, Any] | None) -> None:
        """The rank to kill when memory runs out; None for none."""
        old, self.target = self.target, None
        if old is not None:
            old.close()
        if what is None:
            return
        self.target = Target(
            str(what["unit"]), int(what["rank"]), str(what["boot"]), int(what["pid"]), int(what["start_ticks"]),
            self.proc_root,
        )  # fmt: skip
        self._said_low = False
        self._due["refresh"] = 0.0

    # -- one look ----------------------------------------------------------------------------------------------------

    def look(self) -> float:
        """Look once; kill when it is time. Returns seconds until the next look."""
        try:
            available = self._source.available_bytes()
        except (OSError, ValueError) as error:
            # A figure that cannot be read kills nobody; that it cannot be read is said.
            self.facts["unreadable"] += 1
            if self.facts["unreadable"] == N_RAISED:
                self.tell({"what": "fact", "kind": "unreadable", "sentence": f"memory cannot be read: {error}"})
            return self.period_s
        if self.target is not None and available < self.floor_bytes:
            self._kill(available)
        now = time.monotonic()
        self._warn(available)
        if now >= self._due["sample"]:
            self._due["sample"] = now + 1.0
            self._sample(available)
        if now >= self._due["refresh"]:
            self._due["refresh"] = now + REFRESH_S
            if self.target is not None and self.target.refresh() == 0:
                self.watch(None)
        if now >= self._due["killers"]:
            self._due["killers"] = now + KILLERS_S
            self._slow_facts()
        # Whoever fills memory as fast as it can be filled must not get far below the floor between two looks.
        to_floor_s = (available - self.floor_bytes) / FASTEST_FILL_BYTES_PER_S
        return max(SHORTEST_S, min(self.period_s, to_floor_s))

    def _kill(self, available: int) -> None:
        target = self.target
        assert target is not None
        if self._killed is not target:
            self._killed = target
            kill = self.last_kill = {
                "what": "killed", "at": time.time(), "available": available, "floor": self.floor_bytes,
                "source": self._source.name, "victims": [], "holders": [], **target.to_json(),
            }  # fmt: skip
            self.tell(kill)
            began = time.monotonic()
            victims = target.kill()
            kill["took_ms"] = round((time.monotonic() - began) * 1000, 1)
            kill["victims"] = [{"pid": v.pid, "name": v.name, "rss_bytes": v.rss_bytes} for v in victims]
            kill["holders"] = facts.largest(proc_root=self.proc_root)
            kill["what"] = "killed-whom"
            self.tell(kill)
        else:
            # They die as fast as their memory is given back. Whoever was started meanwhile dies too.
            target.kill()
        if target.refresh() == 0:
            self.watch(None)
            self._killed = None

    def _warn(self, available: int) -> None:
        if available >= self.warn_bytes:
            self._said_low = False
        elif not self._said_low and self.target is not None:
            self._said_low = True
            self.tell({
                "what": "warning", "kind": "memory-low", "sentence":
                f"{self._source.name} is {available / 2**30:.2f} GiB; below {self.floor_bytes / 2**30:.2f} GiB "
                f"rank {self.target.rank} is killed",
            })  # fmt: skip

    def _sample(self, available: int) -> None:
        some, full = 0.0, 0.0
        if self._psi_fd >= 0:
            with contextlib.suppress(OSError, ValueError):
                some, full = pressure(os.pread(self._psi_fd, 512, 0))
        fields = self._memory.fields()
        sample = [
            round(time.time(), 2), available, fields.get("MemFree", 0), fields.get("Cached", 0),
            fields.get("SwapFree", 0), some, full,
        ]  # fmt: skip
        self.samples.append(sample)
        self.tell({"what": "sample", "sample": sample})
        if full < 10:
            self._said_pressure = False
        elif not self._said_pressure and self.target is not None:
            self._said_pressure = True
            self.tell({
                "what": "warning", "kind": "memory-pressure",
                "sentence": f"everything on this machine waited for memory {full:.0f} % of the last 10 s",
            })  # fmt: skip
        self._kernel(fields)

    def _kernel(self, fields: dict[str, int]) -> None:
        self.kmsg.read()
        if self.kmsg.n_no_memory > self._said_no_memory:
            first = self._said_no_memory == 0
            self._said_no_memory = self.kmsg.n_no_memory
            self.tell({"what": "fact", "kind": "gpu-no-memory", "first": first, "n": self.kmsg.n_no_memory, "sentence":
                       f"the GPU driver logged NV_ERR_NO_MEMORY {self.kmsg.n_no_memory} times: a Spark hangs soon "
                       "after"})  # fmt: skip
        if self.kmsg.n_oom_kills > self._said_oom:
            self._said_oom = self.kmsg.n_oom_kills
            self.tell({"what": "fact", "kind": "kernel-oom-kill", "n": self._said_oom,
                       "sentence": f"the kernel killed a process for memory: {self.kmsg.last_oom_kill}"})  # fmt: skip
        bug = kho_bug(fields)
        if bug is not None and self.facts["kho"] is None:
            self.tell({"what": "fact", "kind": "kho", "sentence": bug})
        self.facts["kho"] = bug

    def _slow_facts(self) -> None:
        found = facts.other_killers(self.proc_root)
        for killer in found:
            if killer["name"] not in {known["name"] for known in self.facts["killers"]}:
                self.tell({"what": "fact", "kind": "other-killer", "sentence":
                           f"{killer['name']} (pid {killer['pid']}) also kills processes for memory. "
                           f"{killer['hint']}"})  # fmt: skip
        self.facts["killers"] = found

    # -- whom it tells -----------------------------------------------------------------------------------------------

    def tell(self, message: dict[str, Any]) -> None:
        """To everyone connected. One that does not read never holds the guard."""
        text = json.dumps(message).encode()
        for fd, client in list(self._clients.items()):
            try:
                client.send(text, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError:
                # Gone, or frozen for so long that its buffer is full: it connects again, and is told what it missed.
                self._drop(fd)

    def hello(self) -> dict[str, Any]:
        """What a supervisor that connects has to know: also what happened while nobody listened."""
        return {
            "what": "hello", "format": FORMAT, "pid": os.getpid(), "facts": self.facts,
            "watching": self.target.to_json() if self.target is not None else None, "last_kill": self.last_kill,
            "counts": {"gpu_no_memory": self.kmsg.n_no_memory, "oom_kills": self.kmsg.n_oom_kills},
            "notable": list(self.kmsg.notable)[-50:], "samples": list(self.samples),
        }  # fmt: skip

    def serve(self, listening: socket.socket) -> int:
        """Until SIGTERM, or until alone for `exit_alone_s` with nothing to watch."""
        wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(woken)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(listening, select.POLLIN)
        while True:
            wait_s = self.look()
            for fd, _ in poll.poll(max(1, int(wait_s * 1000))):
                if fd == wake:
                    return 0
                if fd == listening.fileno():
                    self._accept(listening, poll)
                else:
                    self._hear(fd, poll)
            now = time.monotonic()
            if self._clients or self.target is not None:
                self._alone_since_s = now
            elif self.exit_alone_s is not None and now - self._alone_since_s > self.exit_alone_s:
                return 0

    def _accept(self, listening: socket.socket, poll: select.poll) -> None:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        uid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid not in (0, os.geteuid()):
            client.close()
            return
        client.setblocking(False)
        self._clients[client.fileno()] = client
        poll.register(client, select.POLLIN)
        with contextlib.suppress(OSError):
            client.send(json.dumps(self.hello()).encode(), socket.MSG_NOSIGNAL)

    def _hear(self, fd: int, poll: select.poll) -> None:
        client = self._clients.get(fd)
        if client is None:
            with contextlib.suppress(KeyError):
                poll.unregister(fd)
            return
        try:
            text = client.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            text = b""
        if not text:
            poll.unregister(fd)
            self._drop(fd)
            return
        try:
            message = json.loads(text)
            if "configure" in message:
                self.configure(message["configure"])
            if "watch" in message:
                self.watch(message["watch"])
        except (ValueError, KeyError, TypeError, OSError) as error:
            self.tell({"what": "fact", "kind": "misunderstood", "sentence": f"cannot do as told: {error!r}"})

    def _drop(self, fd: int) -> None:
        client = self._clients.pop(fd, None)
        if client is not None:
            client.close()


def harden(proc_root: str = "/proc") -> dict[str, str]:
    """Be the last process that stands. Each measure with `done`, or why not: a missing one is said, not hidden."""
    done: dict[str, str] = {}
    gc.disable()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE) == 0:
        done["memory locked"] = "done"
    else:
        done["memory locked"] = os.strerror(ctypes.get_errno())
    try:
        with open(f"{proc_root}/self/oom_score_adj", "r+") as file:
            if file.read().strip() != "-1000":
                file.seek(0)
                file.write("-1000")
        done["spared by the OOM killer"] = "done"
    except OSError as error:
        done["spared by the OOM killer"] = error.strerror or "no"
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        done["runs before others"] = "done"
    except OSError as error:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, -20)
            done["runs before others"] = "nice -20"
        except OSError:
            done["runs before others"] = error.strerror or "no"
    return done


def listen(path: str) -> socket.socket | None:
    """The socket, for this user alone; None when another guard holds it. A path of any length."""
    directory, name = os.path.split(path)
    os.makedirs(directory, mode=0o750, exist_ok=True)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    # An address holds 107 bytes; a directory's descriptor makes any path short.
    directory_fd = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    old = os.umask(0o177)
    try:
        listening.bind(f"/proc/self/fd/{directory_fd}/{name}")
    finally:
        os.umask(old)
        os.close(directory_fd)
    listening.listen(8)
    return listening


def main(argv: list[str]) -> int:
    """`argv`: one JSON object, `configure` with `socket`, and for tests `proc_root`, `kmsg`. No secret is in it."""
    config = json.loads(argv[0])
    listening = listen(config["socket"])
    if listening is None:
        print("dsv41 guard: another guard watches this node already", file=sys.stderr)
        return 0
    guard = Guard(config)
    guard.facts["hardening"] = harden(guard.proc_root)
    for what, how in guard.facts["hardening"].items():
        if how != "done":
            print(f"dsv41 guard: not {what}: {how}", file=sys.stderr)
    print(f"dsv41 guard: floor {guard.floor_bytes / 2**30:.2f} GiB, process {os.getpid()}", file=sys.stderr, flush=True)
    gc.collect()
    gc.freeze()
    return guard.serve(listening)
