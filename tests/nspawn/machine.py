"""A machine with systemd as PID 1, in a second: systemd-nspawn on an overlay of this machine's own root.

Nothing is downloaded or unpacked and nothing of this machine is changed: what the machine writes lies in a tmpfs that
goes with its mount namespace. The checkout and Python are bound below /opt/dsv41, where every user can read them and
where `ProtectHome=` does not hide them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pydantic

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(pydantic.__file__).parents[1]
"""Where the packages are that the checkout needs."""
OPT = "/opt/dsv41"
SHARED = "/srv/shared"
BOOT_S = 120
COMMAND_S = 120
MASKED = ("systemd-firstboot.service", "systemd-journal-flush.service", "systemd-update-utmp.service")
TARGET = """\
[Unit]
Description=What a test machine boots to
Requires=basic.target dbus.service
After=basic.target dbus.service
AllowIsolate=yes
"""
# systemd-nspawn makes the cgroup of its machine beside its own, so each gets one to itself. The kernel of CI mounts
# cgroup 2 at /unified; elsewhere it is the root.
SCRIPT = """
set -eu
work=$1 cgroup=$2; shift 2
echo $$ > "$cgroup/cgroup.procs"
mount -t tmpfs -o size=512m,mode=755 tmpfs "$work"
mkdir "$work/upper" "$work/overlay" "$work/root"
mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/overlay" overlay "$work/root"
tr -d - < /proc/sys/kernel/random/uuid > "$work/root/etc/machine-id"
exec systemd-nspawn --quiet --directory="$work/root" "$@"
"""


class NoMachine(Exception):
    """Why there can be no machine with systemd here; tests are skipped with this reason."""


def why_not() -> str | None:
    """What is missing for a machine; None when one can be had."""
    if os.geteuid() != 0:
        return "not root"
    tools = ("systemd-nspawn", "nsenter", "unshare", "dbus-daemon", "journalctl")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (apt-get install systemd-container dbus polkitd)"
    if not Path("/usr/lib/polkit-1/polkitd").exists():
        return "not installed: polkitd (apt-get install polkitd)"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "this kernel has no overlayfs"
    return None


@dataclass
class Machine:
    """One booted machine. `units` is its /etc/systemd/system; `shared` is its /srv/shared."""

    name: str
    work: Path
    shared: Path
    network_of: Machine | None = None
    """Share this machine's network; otherwise it has loopback alone."""
    process: subprocess.Popen[bytes] | None = None
    leader: int = 0
    cgroup: Path | None = None
    console: list[str] = field(default_factory=list)

    @property
    def units(self) -> Path:
        return self.work / "units"

    def boot(self) -> None:
        """Start it and wait until its target is reached. Raises AssertionError with its console."""
        reason = why_not()
        if reason is not None:
            raise NoMachine(reason)
        venv = self._make_venv()
        (self.work / "root").mkdir()
        self.units.mkdir(exist_ok=True)
        (self.units / "test.target").write_text(TARGET)
        for name in MASKED:
            (self.units / name).symlink_to("/dev/null")
        unified = Path("/sys/fs/cgroup/unified")
        parent = (unified if unified.is_dir() else Path("/sys/fs/cgroup")) / f"dsv41-test-{os.getpid()}"
        self.cgroup = parent / self.name
        self.cgroup.mkdir(parents=True)
        network = (
            "--private-network" if self.network_of is None
            else f"--network-namespace-path=/proc/{self.network_of.leader}/ns/net"
        )  # fmt: skip
        argv = [
            "unshare", "--mount", "--propagation=private", "sh", "-c", SCRIPT, "sh",
            str(self.work / "root"), str(self.cgroup),
            f"--machine={self.name}", "--register=no", "--keep-unit", "--boot", network, "--console=pipe",
            "--resolv-conf=off", "--timezone=off", "--link-journal=no",
            f"--bind={self.units}:/etc/systemd/system", f"--bind={self.shared}:{SHARED}",
            f"--bind-ro={sys.base_prefix}:{OPT}/python", f"--bind-ro={ROOT}:{OPT}/src",
            f"--bind-ro={SITE}:{OPT}/site", f"--bind-ro={venv}:{OPT}/venv",
            "systemd.unit=test.target", "systemd.log_target=journal-or-kmsg",
        ]  # fmt: skip
        environment = os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
        with (self.work / "console").open("wb") as console:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=console, stderr=console, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + BOOT_S
        while True:
            self.leader = self.leader or self._find_leader()
            if self.leader and self._reached():
                # A Python with a library of its own looks for it where it was installed, which ProtectHome= may hide.
                self.write("/etc/ld.so.conf.d/00-dsv41.conf", f"{OPT}/python/lib\n")
                self.run("ldconfig")
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = (self.work / "console").read_text(errors="replace")
                raise AssertionError(f"{self.name} did not boot within {BOOT_S} s:\n{said[-4000:]}")
            time.sleep(0.05)

    def run(self, *argv: str, check: bool = True, timeout_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        """A command inside, as root; output and errors as text."""
        done = subprocess.run(
            ["nsenter", f"--target={self.leader}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup",
             "env", "--chdir=/", "-i", "PATH=/usr/bin:/usr/sbin:/bin:/sbin", *argv],
            capture_output=True, text=True, errors="replace", timeout=timeout_s, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if check and done.returncode:
            lines = self.journal("--lines=60") if argv[0] == "systemctl" else ""
            raise AssertionError(f"{shlex.join(argv)} ended with {done.returncode}\n{done.stdout}{done.stderr}{lines}")
        return done

    def dsv41(self, *args: str, check: bool = True, timeout_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        return self.run(f"{OPT}/venv/bin/dsv41", *args, check=check, timeout_s=timeout_s)

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Properties of a unit, as `systemctl show` prints them."""
        done = self.run("systemctl", "show", unit, *(f"--property={name}" for name in names))
        return dict(line.partition("=")[::2] for line in done.stdout.splitlines())

    def journal(self, *match: str) -> str:
        # What was said before this must be in it: a line reaches the journal a moment after it was written.
        self.run("journalctl", "--sync", check=False)
        return self.run("journalctl", "--no-pager", "--output=short-precise", *match, check=False).stdout

    def write(self, path: str, text: str, mode: int = 0o644, owner: str = "root:root") -> None:
        """A file inside, on the machine's own disk."""
        script = 'mkdir -p "$(dirname "$1")" && printf %s "$2" > "$1" && chmod "$3" "$1" && chown "$4" "$1"'
        self.run("sh", "-c", script, "sh", path, text, f"{mode:o}", owner)

    def power_off(self) -> None:
        """End everything inside at once; leaves nothing behind."""
        if self.process is None:
            return
        if self.leader:
            # The end of PID 1 ends its whole namespace.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.leader, signal.SIGKILL)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(60)
        propagate = Path("/run/systemd/nspawn/propagate") / self.name
        if propagate.is_dir():
            propagate.rmdir()
        if self.cgroup is not None:
            _remove_cgroup(self.cgroup)
            # Another machine of this test run may still have its own there.
            with contextlib.suppress(OSError):
                self.cgroup.parent.rmdir()

    def _reached(self) -> bool:
        done = self.run("systemctl", "is-active", "test.target", check=False)
        return done.stdout.strip() == "active"

    def _find_leader(self) -> int:
        """The container's PID 1 as seen from here: the first of our descendants that is process 1 of its namespace."""
        assert self.process is not None
        todo = [self.process.pid]
        while todo:
            pid = todo.pop()
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                todo += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except OSError:
                continue
            numbers = next(line for line in status.splitlines() if line.startswith("NSpid")).split()[1:]
            # It is still ours, with our root, until it has become systemd.
            if len(numbers) >= 2 and numbers[-1] == "1" and "systemd" in status.splitlines()[0]:
                return pid
        return 0

    def _make_venv(self) -> Path:
        """A venv of this very Python whose packages are the checkout and what .venv has installed."""
        venv = self.work / "venv"
        site = venv / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        site.mkdir(parents=True)
        (venv / "bin").mkdir()
        (venv / "bin/python").symlink_to(f"{OPT}/python/bin/python{sys.version_info.major}.{sys.version_info.minor}")
        (venv / "pyvenv.cfg").write_text(
            f"home = {OPT}/python/bin\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n"
        )
        paths = (f"{OPT}/src/supervisor", f"{OPT}/src/adapters", f"{OPT}/site")
        (site / "dsv41.pth").write_text("\n".join(paths) + "\n")
        program = venv / "bin/dsv41"
        program.write_text(
            f"#!{OPT}/venv/bin/python\nimport sys\nfrom dsv41_supervisor.__main__ import main\nsys.exit(main())\n"
        )
        program.chmod(0o755)
        self.work.chmod(0o755)
        return venv


def _remove_cgroup(path: Path) -> None:
    """A cgroup and those below it, once their processes are gone."""
    deadline = time.monotonic() + 60
    for directory in [*sorted((p for p in path.rglob("*") if p.is_dir()), reverse=True), path]:
        while True:
            try:
                directory.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                assert time.monotonic() < deadline, f"processes are left in {directory}"
                time.sleep(0.05)
