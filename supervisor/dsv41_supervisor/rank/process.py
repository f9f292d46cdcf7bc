"""`dsv41 rank N`, the main process of unit dsv41-rank@N: be admitted, run the engine, tell supervisor and systemd.

It stays the parent of the engine, so that one small process without torch reads the engine's log, keeps the lease and
ends everything when the lease ends. The engine dies with it (PR_SET_PDEATHSIG), whatever kills it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence

from dsv41_adapters.report import read_reports

from ..atomic import write_json
from ..demo.keeper import MARK
from ..errors import Dsv41Error, Exit, PeerUnreachable, Stage
from ..fleet.lease import RankLease
from ..fleet.peers import SupervisorClient
from ..journal import log
from ..node import N_LAST_LINES, clear_reports
from ..settings import Settings
from ..units.procfs import named_descendants
from .container_run import ContainerRun, why_podman_failed
from .containers import podman_environment
from .notify import notify
from .phases import Progress
from .plan import LaunchPlan
from .reading import Reading

_PR_SET_PDEATHSIG = 1
HEARTBEAT_S = 1.0
READY_HEARTBEAT_S = 2.0
"""Whatever changes is told at once; this only says that the process is not frozen, and hears of the lease."""
ADMISSION_POLL_S = 20.0
ADMISSION_SILENCE_S = 30.0
TERMINATE_S = 8.0
LOST_TERMINATE_S = 1.0
"""A rank that lost a process of its own, or its lease, has nothing to finish."""
MAX_LINE_BYTES = 64 << 10
ENGINE_NAMES = {"sglang::schedul": "scheduler", "sglang::detoken": "detokenizer"}
"""What SGLang calls its processes, as the kernel keeps it (15 characters). Source: setproctitle in sglang 0.5.23."""
_LINE_END = re.compile(rb"[\r\n]+")


RANK_OOM_SCORE = 500
"""If memory runs out all the same, the kernel takes the rank, and not its supervisor or sshd (as modules/rank.nix)."""


def _prefer_to_be_killed() -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
        if int(file.read()) < RANK_OOM_SCORE:
            file.seek(0)
            file.write(str(RANK_OOM_SCORE))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


async def run(settings: Settings, node: str, rank: int) -> int:
    """The whole life of one rank. Returns the exit status: 0 asked to stop, 69 lost, 78 refused."""
    expected = settings.fleet.nodes[node].rank
    if rank != expected:
        raise Dsv41Error(
            f"{node} runs rank {expected}, not {rank}.", stage=Stage.RANK, node=node, rank=rank,
            hint=f"Start dsv41-rank@{expected} here, or run on {settings.fleet.by_rank(rank)}."
            if rank < settings.fleet.world_size else f"Ranks of this fleet are 0 to {settings.fleet.world_size - 1}.",
        )  # fmt: skip
    _prefer_to_be_killed()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with SupervisorClient(settings, node) as supervisor:
        plan = await _admission(supervisor, rank, stop)
        if plan is None:
            return Exit.OK
        return await _Running(settings, supervisor, plan, stop).run()


async def _admission(supervisor: SupervisorClient, rank: int, stop: asyncio.Event) -> LaunchPlan | None:
    """Wait to be admitted. None when told to stop first. Raises Refused with the reason when turned away."""
    log.info("rank %d asks to be admitted", rank)
    notify("STATUS=asking to be admitted")
    heard_at_s = time.monotonic()
    while not stop.is_set():
        asking = asyncio.ensure_future(supervisor.call("POST", f"/rank/{rank}/admit", {"wait_s": ADMISSION_POLL_S},
                                                       timeout_s=ADMISSION_POLL_S + 5))  # fmt: skip
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if stop.is_set():
            asking.cancel()
            return None
        try:
            answer = await asking
        except PeerUnreachable:
            # A supervisor may be restarted while a rank waits.
            if time.monotonic() - heard_at_s > ADMISSION_SILENCE_S:
                raise
            await asyncio.sleep(0.5)
            continue
        heard_at_s = time.monotonic()
        notify(f"STATUS={answer.get('status', 'waiting to be admitted')}")
        if answer.get("plan") is not None:
            return LaunchPlan.from_json(answer["plan"])
    return None


class _Running:
    """One engine and what is said about it."""

    def __init__(self, settings: Settings, supervisor: SupervisorClient, plan: LaunchPlan, stop: asyncio.Event) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._plan = plan
        self._boot = str(plan.document["boot"])
        self._stop = stop
        self._progress = Progress()
        self._reading = Reading()
        self._last_lines: deque[str] = deque(maxlen=N_LAST_LINES)
        self._lease = RankLease(time.monotonic() + settings.supervisor.lease_ttl_s)
        self._log_lost = False
        self._why = ""
        self._ready = False
        self._engine_pid: int | None = None
        self._container = ContainerRun(plan.container, plan.document_path.parent) if plan.container else None
        self._outer_pids: dict[int, int] = {}
        self._watched: dict[int, int] = {}
        """Pid of each of the engine's processes that has reported, with its pidfd."""
        self._news = asyncio.Event()
        """Set at each sign of progress, so that it is reported at once and not at the next beat."""

    async def run(self) -> int:
        clear_reports(self._plan.document_path.parent)
        write_json(self._plan.document_path, self._plan.document)
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": os.environ.get("HOME", "/"),
            "LANG": "C.UTF-8",
            **self._plan.environment,
        }
        for passed_on in ("TMPDIR", "XDG_CACHE_HOME", MARK):
            if passed_on in os.environ:
                environment.setdefault(passed_on, os.environ[passed_on])
        argv: Sequence[str] = self._plan.argv
        if self._container is not None:
            inside = self._plan.environment | {n: environment[n] for n in (MARK,) if n in environment}
            argv = await self._container.prepare(argv, inside)
            environment = podman_environment() | {n: environment[n] for n in (MARK,) if n in environment}
        try:
            engine = await asyncio.create_subprocess_exec(
                *argv, env=environment, preexec_fn=_die_with_parent, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            raise Dsv41Error(
                f"cannot start the engine: {self._plan.argv[0]}: {error.strerror}.", stage=Stage.ENGINE,
                rank=self._plan.rank, hint="Set engine.python to the engine environment's Python; make builds it."
                if self._container is None else "Install podman, or set engine.container.podman to where it is.",
            ) from None  # fmt: skip
        # A container's processes are no children of podman's; see container_run.
        self._engine_pid = engine.pid if self._container is None else os.getpid()
        reading = asyncio.ensure_future(self._read(engine))
        beating = asyncio.ensure_future(self._beat())
        stopping = asyncio.ensure_future(self._stop.wait())
        exited = asyncio.ensure_future(engine.wait())
        try:
            await asyncio.wait({exited, stopping, beating}, return_when=asyncio.FIRST_COMPLETED)
            asked = not exited.done()
            if asked:
                if beating.done():
                    log.warning("rank %d stops: %s", self._plan.rank, self._why)
                else:
                    await self._tell_stopping()
                await self._end(engine, TERMINATE_S if self._stop.is_set() else LOST_TERMINATE_S)
            # What the engine wrote last matters most; but a child that holds the pipe must not hold us.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(reading), 2)
            status = engine.returncode if engine.returncode is not None else -1
            if not asked:
                if self._container is not None and (why := why_podman_failed(status)) is not None:
                    self._last_lines.append(f"dsv41: {why}")
                await self._tell_exit(status)
                log.error("rank %d: the engine ended by itself, status %d", self._plan.rank, status)
                return Exit.REFUSED if status == Exit.REFUSED else Exit.UNAVAILABLE
            return Exit.OK if self._stop.is_set() else Exit.UNAVAILABLE
        finally:
            notify("STOPPING=1")
            for task in (reading, beating, stopping):
                task.cancel()
            for fd in self._watched.values():
                asyncio.get_running_loop().remove_reader(fd)
                os.close(fd)
            if self._container is not None:
                await self._container.clear(self._plan.argv[0])

    async def _end(self, engine: asyncio.subprocess.Process, patience_s: float) -> None:
        """Politely, then by force. Its children die with it or are found by the unit's owner."""
        if engine.returncode is not None:
            return
        if self._container is not None:
            await self._container.end(engine, patience_s)
            return
        with contextlib.suppress(ProcessLookupError):
            engine.terminate()
        try:
            await asyncio.wait_for(engine.wait(), patience_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                engine.kill()
            await engine.wait()

    async def _read(self, engine: asyncio.subprocess.Process) -> None:
        """Pass the engine's output on, and learn its phase from it."""
        assert engine.stdout is not None
        rest = b""
        while chunk := await engine.stdout.read(65536):
            self._pass_on(chunk)
            # Progress bars end their lines with a carriage return; waiting for a line feed would hide them all.
            *lines, rest = _LINE_END.split(rest + chunk)
            rest = rest[-MAX_LINE_BYTES:]
            for raw in lines:
                self._hear(raw.decode(errors="replace").rstrip())
        self._hear(rest.decode(errors="replace").rstrip())

    def _pass_on(self, chunk: bytes) -> None:
        """To the unit's log. A full disk loses lines; it must not fill the engine's pipe and stop its tokens."""
        try:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        except OSError as error:
            if not self._log_lost:
                self._log_lost = True
                self._last_lines.append(f"dsv41: the log cannot be written ({error.strerror}); lines are lost")

    def _hear(self, line: str) -> None:
        if not line:
            return
        self._last_lines.append(line[:500])
        before, self._progress = self._progress, self._progress.feed(line[:MAX_LINE_BYTES])
        if self._progress.hopeless is not None and not self._why:
            self._why = self._progress.hopeless
            self._news.set()
        if self._progress.phase is not before.phase:
            self._news.set()

    async def _beat(self) -> None:
        """Report each second; return when this rank may not go on."""
        while True:
            began = time.monotonic()
            self._watch_processes()
            try:
                said = self._body()
                answer = await self._supervisor.call("POST", f"/rank/{self._plan.rank}/report", said, timeout_s=5)
            except PeerUnreachable:
                # A supervisor may be restarted while serving; only the lease decides.
                said_no = "the lease ran out and the supervisor does not answer"
            except Dsv41Error as error:
                log.warning("the supervisor refused the report: %s", error)
                said_no = str(error)
            else:
                if said["lost"] or not answer["go_on"]:
                    self._why = self._why or str(answer.get("reason"))
                    return
                self._lease = self._lease.heard(began, answer["lease_left_s"])
                said_no = "the lease ran out: the head has not renewed it"
                if answer["ready"] and not self._ready:
                    notify("READY=1")
                self._ready = bool(answer["ready"])
                notify("WATCHDOG=1", f"STATUS={answer['status']}")
            if not self._lease.may_run(time.monotonic()):
                self._why = said_no
                return
            with contextlib.suppress(TimeoutError):
                period_s = READY_HEARTBEAT_S if self._ready else HEARTBEAT_S
                await asyncio.wait_for(self._news.wait(), max(0.0, period_s - (time.monotonic() - began)))
            self._news.clear()

    def _watch_processes(self) -> None:
        """Hear at once when a process of the engine dies. SGLang's launcher takes 4 to 7 s to end after its scheduler
        was killed, and a worker's then ends with status 0 (seen with 0.5.23, 2026-11-29).
        """
        for report in read_reports(self._plan.document_path.parent, self._boot):
            pid = report.pid if self._container is None else self._outer(report.pid)
            if pid is None or not self._watch_process(report.role, pid):
                self._process_died(report.role, pid or report.pid)
        if not self._ready and self._engine_pid is not None:
            # They report when they are armed, at the end of loading. One that dies before would be told by the ranks
            # that lose it, sooner than by its own launcher, and the wrong rank would look guilty.
            for pid, name in named_descendants(self._engine_pid, ENGINE_NAMES):
                self._watch_process(ENGINE_NAMES.get(name, name), pid)

    def _outer(self, inner: int) -> int | None:
        """The pid of a process that reported its pid in the container; looked up once."""
        if inner not in self._outer_pids and self._container is not None:
            pid = self._container.outer(inner)
            if pid is None:
                return None
            self._outer_pids[inner] = pid
        return self._outer_pids[inner]

    def _watch_process(self, role: str, pid: int) -> bool:
        """Wake up when this process ends. False when it has."""
        if pid in self._watched:
            return True
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        self._watched[pid] = fd
        asyncio.get_running_loop().add_reader(fd, self._process_died, role, pid)
        return True

    def _process_died(self, role: str, pid: int) -> None:
        fd = self._watched.get(pid)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
        if not self._stop.is_set() and not self._why:
            self._why = f"the engine's {role} (process {pid}) died"
            self._news.set()

    async def _tell_stopping(self) -> None:
        """Before the engine goes: what somebody else than the supervisor stops is no loss to recover from."""
        notify("STOPPING=1", "STATUS=stopping")
        with contextlib.suppress(Dsv41Error):
            await self._supervisor.call(
                "POST", f"/rank/{self._plan.rank}/report", self._body() | {"stopping": True}, timeout_s=2
            )

    async def _tell_exit(self, status: int) -> None:
        with contextlib.suppress(Dsv41Error):
            await self._supervisor.call(
                "POST", f"/rank/{self._plan.rank}/report", self._body() | {"exit_status": status}, timeout_s=3
            )

    def _body(self) -> dict[str, object]:
        progress = self._progress
        return {
            "boot": self._boot,
            "phase": str(progress.phase),
            "fraction": progress.fraction,
            "mark": progress.mark + self._reading.look(progress.phase),
            "max_total_tokens": progress.max_total_tokens,
            "memory_line": progress.memory_line,
            "last_lines": list(self._last_lines)[-N_LAST_LINES:],
            "lost": self._why or None,
        }
