"""A rank's container where it runs: prepared, its processes found, ended, and what was left of others removed.

conmon detaches itself from podman, and SGLang's processes are conmon's. This process is a child subreaper, so that all
of them stay its descendants: whoever watches or kills a rank by descent (here, the guard, the supervisor) finds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import Dsv41Error, Stage
from ..journal import log
from ..units.procfs import descendants, inner_pids, start_time
from .container import ENVIRONMENT, HOLDER_LABEL, SECCOMP, ContainerPlan, environment_file
from .containers import remove_left

_PR_SET_CHILD_SUBREAPER = 36
N_FILES = 1048576
"""As LimitNOFILE in modules/rank.nix: the first all-gather opens more than the default allows."""
FORCE_S = 5.0
PODMAN_FAILED, NO_COMMAND = 125, 127
"""Exit statuses of podman itself; source: podman-run(1)."""


class ContainerRun:
    """One container; used by `process.py` alone."""

    def __init__(self, plan: ContainerPlan, directory: Path) -> None:
        self._plan, self._directory = plan, directory
        self._holder = f"{os.getpid()}-{start_time(os.getpid())}"

    async def prepare(self, argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Everything that must be there before podman, and the argv with what is only known here.

        Raises Dsv41Error when an older container of this node cannot be removed.
        """
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        podman = argv[0]
        for name in await remove_left(podman, self._plan.node):
            log.warning("removed the container %s, which an earlier rank had left", name)
        owner = self._directory.stat()
        self._make_cache(owner)
        self._write_environment({"HOME": self._plan.cache_dir, "LANG": "C.UTF-8", **environment})
        here = [
            "--label", f"{HOLDER_LABEL}={self._holder}", f"--security-opt=seccomp={SECCOMP}",
            f"--oom-score-adj={_oom_score()}", *_user(owner), *_limits(),
        ]  # fmt: skip
        return [*argv[:2], *here, *argv[2:]]

    def outer(self, inner: int) -> int | None:
        """The pid here of a process that calls itself `inner` in the container; None when there is none."""
        return inner_pids(os.getpid()).get(inner)

    async def end(self, podman: asyncio.subprocess.Process, patience_s: float) -> None:
        """Politely, then by force. Signals go to the container's first process and not to podman: it would have the
        runtime deliver them, which AppArmor denies on Ubuntu 24.04 (LP#2040483)."""
        self._signal(signal.SIGTERM)
        for number, wait_s in ((signal.SIGKILL, patience_s), (None, FORCE_S)):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(podman.wait()), wait_s)
                return
            if number is not None:
                self._signal(number)
        self.kill_all()
        await podman.wait()

    def kill_all(self) -> None:
        """Every process below this one, conmon and podman too, until a whole look finds nobody."""
        for _ in range(20):
            if not (found := descendants(os.getpid())):
                return
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def clear(self, podman: str) -> None:
        """After the engine has ended. Never raises: what is left is found by whoever looks, and by the next rank."""
        self.kill_all()
        (self._directory / ENVIRONMENT).unlink(missing_ok=True)
        try:
            await remove_left(podman, self._plan.node, holder=self._holder)
        except Dsv41Error as error:
            log.warning("%s", error)

    # -- private -----------------------------------------------------------------------------------------------------

    def _signal(self, number: signal.Signals) -> None:
        first = self.outer(1)
        if first is None:
            # Not there yet: podman has only begun.
            self.kill_all()
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(first, number)

    def _make_cache(self, owner: os.stat_result) -> None:
        try:
            os.makedirs(self._plan.cache_dir, mode=0o750, exist_ok=True)
            if os.geteuid() == 0:
                os.chown(self._plan.cache_dir, owner.st_uid, owner.st_gid)
        except OSError as error:
            raise Dsv41Error(
                f"cannot make {self._plan.cache_dir}: {error.strerror}.", stage=Stage.ENGINE,
                hint="Set engine.container.cache_dir to a directory that the rank may write to.", transient=True,
            ) from None  # fmt: skip

    def _write_environment(self, environment: dict[str, str]) -> None:
        path = self._directory / ENVIRONMENT
        try:
            text = environment_file(environment)
        except ValueError as error:
            raise Dsv41Error(f"{error}.", stage=Stage.ENGINE, hint="Correct it in engine.environment.") from None
        # Anew and not opened: whoever else may write to this directory must not choose where it goes.
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(fd, "w") as file:
            file.write(text)


def why_podman_failed(status: int) -> str | None:
    """What to do next when it was podman, and not the engine, that ended so."""
    if PODMAN_FAILED <= status <= NO_COMMAND:
        return "podman could not start the container; its last line says why, and dsv41 doctor looks at what it needs"
    return None


def _oom_score() -> int:
    """Said, because conmon protects itself from the OOM killer, and the engine is to be as this process is."""
    with open("/proc/self/oom_score_adj") as file:
        return int(file.read())


def _user(owner: os.stat_result) -> list[str]:
    """The engine writes its reports as the directory's owner, and is nobody else inside either."""
    user = [f"--user={owner.st_uid}:{owner.st_gid}"]
    return user if os.geteuid() == 0 else ["--userns=keep-id", *user]


def _limits() -> list[str]:
    """Ours, lifted as far as we may: podman's own defaults would take the unit's place."""
    wanted = (("memlock", resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY), ("nofile", resource.RLIMIT_NOFILE, N_FILES))
    argv = []
    for name, which, most in wanted:
        soft, hard = resource.getrlimit(which)
        if hard != resource.RLIM_INFINITY and (most == resource.RLIM_INFINITY or hard < most):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(which, (soft, most))
        hard = resource.getrlimit(which)[1]
        argv.append(f"--ulimit={name}={hard}:{hard}")
    return argv
