"""The engine's own virtual environment, `.venv-engine`: made once, checked each time, never half trusted.

`dsv41-environment.json` in it is the mark that we made it. It is written first, with nothing in it, and says at the
end what was installed: an environment whose mark is empty was interrupted and is made anew. Only what carries the
mark is ever removed. Packages of this project (row store, adapters) are installed again when their sources change.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Dsv41Error, Refusal, Refused
from ..errors import Stage as S
from .progress import Progress, Stage

MARK = "dsv41-environment.json"
LOG = "dsv41-install.log"
_TEMPORARY = "dsv41-tmp"
_SOURCES = {".py", ".pyi", ".pyx", ".pxd", ".pxi", ".h", ".toml", ".cfg", ".in", ".md"}
_NOT_SOURCES = {"build", "dist", "__pycache__"}
_STEP_TIMEOUT_S = 2 * 3600
_GB = 10**9

# Becomes its arguments; is killed when the demo dies, so that no download goes on by itself.
_DIE_WITH_PARENT = "import ctypes,os,sys; ctypes.CDLL(None).prctl(1,9,0,0,0); os.execv(sys.argv[1],sys.argv[1:])"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an environment is made of, and what it costs."""

    requirements: str
    """File with every version pinned, below the root; installed as it stands, without resolving."""
    local: tuple[str, ...]
    """Directories of our own packages below the root."""
    check: str
    """Program that fails when something essential cannot be loaded."""
    download_bytes: float
    disk_bytes: float
    n_files: int
    """Files when it is complete; how far installing is, is counted in files."""
    what: str


ENGINE = Recipe(
    requirements="demo/engine-cpu.txt",
    local=("rowstore", "adapters"),
    check="import importlib.metadata as m, torch, dsv41_rowstore, dsv41_adapters; m.version('sglang')",
    # Measured 2026-11-29 on x86_64 with Python 3.11 and torch 2.14.1.
    download_bytes=3.4 * _GB,
    disk_bytes=7.3 * _GB,
    n_files=71_000,
    what="most of it torch and the CUDA libraries that it loads even on a CPU",
)


@dataclass(frozen=True, slots=True)
class EngineEnvironment:
    """A complete environment. `created`: something had to be installed."""

    python: Path
    created: bool
    took_s: float


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a Python says about itself."""

    version: tuple[int, int, int]
    executable: str
    include: str
    has_ensurepip: bool


def ensure_engine(root: Path, python: str, progress: Progress, recipe: Recipe = ENGINE) -> EngineEnvironment:
    """The engine's environment below `root`, made with `python` when it is missing, old or incomplete.

    Raises Refused with everything this machine lacks, Dsv41Error when installing fails. Blocks; stops within a second
    when the stage it runs in is left.
    """
    began = time.monotonic()
    with _alone(root):
        created = _Builder(root, python, progress, recipe).ensure()
    return EngineEnvironment(root / ".venv-engine" / "bin" / "python", created, time.monotonic() - began)


class _Builder:
    def __init__(self, root: Path, python: str, progress: Progress, recipe: Recipe) -> None:
        self._root = root
        self._python = python
        self._progress = progress
        self._recipe = recipe
        self._stage: Stage | None = progress.current
        self._venv = root / ".venv-engine"
        self._pip_python = self._venv / "bin" / "python"

    def ensure(self) -> bool:
        requirements = self._root / self._recipe.requirements
        missing = [path for path in (requirements, *map(self._root.joinpath, self._recipe.local)) if not path.exists()]
        if missing:
            raise Dsv41Error(
                f"{missing[0]} is missing.", stage=S.CONFIG, hint="Run the demo from a checkout of the project."
            )
        facts = _facts_of(self._python)
        wanted = {"base": self._base_hash(facts, requirements), "local": self._local_hash()}
        mark = self._read_mark()
        if mark.get("base") == wanted["base"] and self._runs():
            if mark.get("local") == wanted["local"]:
                return False
            self._check_machine(facts, new=False)
            self._progress.say(f"engine environment: {' and '.join(self._recipe.local)} changed, installing them again")
            self._write_mark({"base": wanted["base"]})
            self._install_local()
        else:
            self._check_machine(facts, new=True)
            self._say_what_comes(mark)
            self._make()
            self._install_requirements(requirements)
            self._install_local()
        self._update("checking that everything loads")
        self._run([str(self._pip_python), "-c", self._recipe.check], "the new environment does not load")
        self._write_mark(wanted)
        return True

    # -- what is there -------------------------------------------------------------------------------------------

    def _read_mark(self) -> dict[str, Any]:
        """What was installed; {} when nothing can be trusted. Raises Dsv41Error when the directory is not ours."""
        if not self._venv.exists() and not self._venv.is_symlink():
            return {}
        try:
            mark = json.loads((self._venv / MARK).read_text())
        except FileNotFoundError:
            raise Dsv41Error(
                f"{self._venv} exists and was not made by dsv41 (it has no {MARK}), so it is left alone.",
                stage=S.CONFIG,
                hint="Move it away, then try again.",
            ) from None
        except (OSError, ValueError):
            return {}
        return mark if isinstance(mark, dict) else {}

    def _write_mark(self, mark: dict[str, str]) -> None:
        temporary = self._venv / f".{MARK}.tmp"
        with temporary.open("w") as file:
            json.dump(mark, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._venv / MARK)

    def _runs(self) -> bool:
        """A Python that was upgraded or moved leaves an environment that cannot start."""
        try:
            done = subprocess.run([self._pip_python, "-c", "pass"], capture_output=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    def _base_hash(self, facts: _Facts, requirements: Path) -> str:
        parts = [requirements.read_text(), repr(facts.version), facts.executable, platform.machine()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _local_hash(self) -> str:
        digest = hashlib.sha256()
        for name in self._recipe.local:
            for path in _sources(self._root / name):
                digest.update(f"{path.relative_to(self._root)}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def _check_machine(self, facts: _Facts, *, new: bool) -> None:
        """Everything that is missing, together."""
        refusals = list(_missing_tools(facts))
        free = shutil.disk_usage(self._root).free
        # pip keeps every download until it has installed all of them.
        need = self._recipe.disk_bytes + self._recipe.download_bytes if new else 0.05 * _GB
        if self._venv.exists() and new:
            free += sum(f.lstat().st_blocks * 512 for f in _files(self._venv))
        if free < need:
            refusals.append(
                Refusal(
                    S.CONFIG,
                    f"{self._root} has {free / _GB:.1f} GB free, and making the engine's environment takes "
                    f"{need / _GB:.1f} GB.",
                    f"Free {(need - free) / _GB:.1f} GB there.",
                    transient=True,
                )
            )
        if refusals:
            raise Refused(refusals)

    def _say_what_comes(self, mark: dict[str, Any]) -> None:
        recipe = self._recipe
        why = "" if not self._venv.exists() else "it is of another version or was interrupted; "
        self._progress.say(
            f"engine environment: {why}about {recipe.download_bytes / _GB:.0f} GB will be downloaded, {recipe.what}; "
            f"{self._venv} then takes {recipe.disk_bytes / _GB:.0f} GB of disk. This is done once. "
            "pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, …) are honoured."
        )

    # -- making it -----------------------------------------------------------------------------------------------

    def _make(self) -> None:
        self._update("making the environment")
        if self._venv.is_symlink() or self._venv.is_file():
            raise Dsv41Error(f"{self._venv} is not a directory.", stage=S.CONFIG, hint="Move it away, then try again.")
        if self._venv.exists():
            shutil.rmtree(self._venv)
        self._venv.mkdir()
        self._write_mark({})
        self._run([self._python, "-m", "venv", str(self._venv)], "no virtual environment could be made")

    def _install_requirements(self, requirements: Path) -> None:
        with self._watching("downloading", self._recipe.download_bytes, self._recipe.n_files):
            self._pip("--no-deps", "--requirement", str(requirements))

    def _install_local(self) -> None:
        """From copies: building in place leaves directories behind, and takes what an older build left there."""
        self._update(f"building {' and '.join(self._recipe.local)}")
        with self._temporary() as temporary:
            copies = []
            for name in self._recipe.local:
                for path in _sources(self._root / name):
                    copy = temporary / "src" / path.relative_to(self._root)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, copy)
                copies.append(str(temporary / "src" / name))
            self._pip("--no-deps", "--force-reinstall", "--no-cache-dir", *copies)

    def _pip(self, *arguments: str) -> None:
        options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--no-warn-script-location"]
        self._run([str(self._pip_python), "-m", "pip", "install", *options, *arguments], "pip could not install")

    def _run(self, argv: list[str], failure: str) -> None:
        """Run to the end; its output goes to the log. Ended with all it started when the stage is left."""
        log_path = self._venv / LOG
        with self._temporary() as temporary, log_path.open("ab") as log:
            log.write(f"$ {' '.join(argv)}\n".encode())
            log.flush()
            at = log.tell()
            # Downloads go to the disk that was checked, not to a /tmp that may be memory.
            environment = {**os.environ, "TMPDIR": str(temporary)}
            for name in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER"):
                environment.pop(name, None)
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, shutil.which(argv[0]) or argv[0], *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
            try:
                status = self._wait(process)
            finally:
                # The whole group: pip builds in processes of its own.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status:
            text = log_path.read_bytes()[at:].decode(errors="replace")
            raise _failure(failure, text, status, log_path)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        deadline = time.monotonic() + _STEP_TIMEOUT_S
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(0.2)
            if self._stage is not None and self._stage.finished:
                raise Dsv41Error(
                    "making the engine's environment was stopped.",
                    stage=S.CONFIG,
                    hint="Start the demo again; it begins with a new environment.",
                    transient=True,
                )
            if time.monotonic() > deadline:
                raise Dsv41Error(
                    f"pip did not finish within {_STEP_TIMEOUT_S // 3600} hours.",
                    stage=S.CONFIG,
                    hint=f"See {self._venv / LOG}, then try again.",
                    transient=True,
                )

    # -- showing it ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[Path]:
        """A directory for one step, within what we made; several steps may be within each other."""
        parent = self._venv / _TEMPORARY
        parent.mkdir(exist_ok=True)
        path = Path(tempfile.mkdtemp(dir=parent))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                parent.rmdir()

    @contextlib.contextmanager
    def _watching(self, text: str, download_bytes: float, n_files: int) -> Iterator[None]:
        """Show how far pip is: first by what it has downloaded, then by the files it has installed."""
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(stop, text, download_bytes, n_files), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _watch(self, stop: threading.Event, text: str, download_bytes: float, n_files: int) -> None:
        pause_s = 0.5
        while not stop.wait(pause_s):
            began = time.monotonic()
            log = _tail(self._venv / LOG)
            if "Installing collected packages" in log:
                n = sum(1 for _ in _files(self._venv / "lib"))
                self._update(f"installing: {n} files of about {n_files}", 0.6 + 0.4 * n / n_files)
            else:
                n_bytes = sum(size for _, size in _sizes(self._venv / _TEMPORARY))
                name = re.findall(r"^Collecting ([A-Za-z0-9_.-]+)", log, re.MULTILINE)
                done = f"{n_bytes / _GB:.1f} GB of about {download_bytes / _GB:.1f} GB"
                detail = f"{name[-1]}, {done}" if name else done
                self._update(f"{text}: {detail}", 0.6 * n_bytes / download_bytes)
            # Counting files costs: a tenth of the time at most.
            pause_s = max(0.5, 10 * (time.monotonic() - began))

    def _update(self, text: str, fraction: float | None = None) -> None:
        if self._stage is not None:
            self._stage.update(text, None if fraction is None else min(fraction, 0.99))


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """One at a time: the directory itself is locked, so nothing is left when we are killed."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Dsv41Error(
                f"another process is making {root / '.venv-engine'}.",
                stage=S.CONFIG,
                hint="Wait until it has finished, then try again.",
                transient=True,
            ) from None
        yield
    finally:
        os.close(fd)


def _facts_of(python: str) -> _Facts:
    code = (
        "import importlib.util, json, os, sys, sysconfig; print(json.dumps([list(sys.version_info[:3]), "
        "os.path.realpath(sys._base_executable), sysconfig.get_path('include'), "
        "importlib.util.find_spec('ensurepip') is not None]))"
    )
    try:
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=60)
        version, executable, include, has_ensurepip = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        raise Dsv41Error(
            f"{python} does not run, and the engine's environment is made with it.",
            stage=S.CONFIG,
            hint="Name a Python 3.11 or newer.",
        ) from None
    return _Facts(tuple(version), executable, include, has_ensurepip)


def _missing_tools(facts: _Facts) -> Iterator[Refusal]:
    short = ".".join(map(str, facts.version[:2]))
    if facts.version < (3, 11, 0):
        yield Refusal(
            S.CONFIG,
            f"{facts.executable} is Python {'.'.join(map(str, facts.version))}, and the engine needs 3.11 or newer.",
            "Install python3.11 and make .venv with it.",
        )
    if not facts.has_ensurepip:
        yield Refusal(
            S.CONFIG,
            f"Python {short} cannot make virtual environments: its module ensurepip is missing.",
            f"Install python{short}-venv (Debian, Ubuntu).",
        )
    if not Path(facts.include, "Python.h").is_file():
        yield Refusal(
            S.CONFIG,
            f"the headers of Python {short} are missing: there is no {facts.include}/Python.h.",
            f"Install python{short}-dev (Debian, Ubuntu) or python{short}-devel (Fedora).",
        )
    for variable, program, package in (
        ("CC", "gcc", "gcc"),
        ("CXX", "g++", "g++ (Debian, Ubuntu) or gcc-c++ (Fedora)"),
    ):
        name = os.environ.get(variable, "").split(" ")[0] or program
        if shutil.which(name) is None:
            yield Refusal(
                S.CONFIG,
                f"there is no {name}, which builds the row store and what torch compiles as it starts.",
                f"Install {package}.",
            )


def _failure(what: str, text: str, status: int, log_path: Path) -> Dsv41Error:
    """One sentence from pip's output, and whether trying again can help."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    last = (errors or lines or [f"exit status {status}"])[-1][:300].rstrip(".")
    if "No space left on device" in text:
        hint, transient = f"Free some space for {log_path.parent}, then try again.", True
    elif re.search(
        r"Max retries|NewConnectionError|Temporary failure in name|timed out|No matching distribution", text
    ):
        hint, transient = "Check the network, the proxy and pip's settings (PIP_INDEX_URL), then try again.", True
    else:
        hint, transient = f"See {log_path}.", False
    return Dsv41Error(f"{what}: {last}.", stage=S.CONFIG, hint=hint, transient=transient)


def _sources(directory: Path) -> list[Path]:
    """Files a package is built from, without what a build makes."""
    found = []
    for folder, names, files in os.walk(directory):
        names[:] = sorted(n for n in names if n not in _NOT_SOURCES and not n.endswith(".egg-info") and n[0] != ".")
        found += [Path(folder, f) for f in sorted(files) if Path(f).suffix in _SOURCES]
    return found


def _sizes(directory: Path) -> Iterator[tuple[str, int]]:
    """Files below a directory that may change while we look."""
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                path = os.path.join(folder, name)
                yield path, os.lstat(path).st_size


def _files(directory: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(directory):
        yield from (Path(folder, name) for name in names)


def _tail(path: Path, n_bytes: int = 64 << 10) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - n_bytes))
        return file.read().decode(errors="replace")
    return ""
