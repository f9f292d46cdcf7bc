"""The memory guard: its figures, its process, whom it kills and whom never."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dsv41_supervisor.guard.facts import Kmsg, other_killers
from dsv41_supervisor.guard.memory import CgroupMemory, Least, SystemMemory, kho_bug, parse_meminfo, pressure
from dsv41_supervisor.guard.target import Target, read_stat

from tests.harness.guard import MIB, FakeCgroup, running_guard

MEMINFO = """MemTotal:       127535336 kB
MemFree:         2860800 kB
MemAvailable:    6465136 kB
Cached:         12264632 kB
HugePages_Total:       0
CmaTotal:       {cma_total} kB
CmaFree:        {cma_free} kB
"""
# Each prints its pid. The child has a session of its own, as an engine's helpers do, and outlives nobody by itself.
TREE = """
import os, subprocess, sys, time
if len(sys.argv) > 1:
    child = subprocess.Popen([sys.executable, __file__], start_new_session=True, stdout=subprocess.PIPE, text=True)
    print(os.getpid(), child.stdout.readline().strip(), flush=True)
else:
    print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def tree(tmp_path: Path):
    """A rank's main process and a child that left its session: (popen, child's pid)."""
    script = tmp_path / "tree.py"
    script.write_text(TREE)
    main = subprocess.Popen(
        [sys.executable, str(script), "main"], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert main.stdout is not None
    child = int(main.stdout.readline().split()[1])
    yield main, child
    for pid in (main.pid, child):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    main.wait(10)
    main.stdout.close()


def gone(pid: int, timeout_s: float = 20) -> bool:
    deadline = time.monotonic() + timeout_s
    while (stat := read_stat(pid)) is not None and not stat.dead:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


# -- figures -----------------------------------------------------------------------------------------------------------


def test_memory_is_available_and_never_free(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO.format(cma_total=0, cma_free=0))
    memory = SystemMemory(str(tmp_path))
    assert memory.available_bytes() == 6465136 * 1024
    assert memory.fields()["MemFree"] == 2860800 * 1024
    assert memory.fields()["HugePages_Total"] == 0


def test_the_machine_s_own_meminfo_is_understood() -> None:
    fields = SystemMemory().fields()
    assert 0 < fields["MemAvailable"] <= fields["MemTotal"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroup_leaves_its_limit_without_usage_but_with_pages_that_can_go(tmp_path: Path, version: int) -> None:
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "cache 9\ninactive_file 1\ntotal_inactive_file 50\n"),
        2: ("memory.max", "memory.current", "anon 9\ninactive_file 50\n"),
    }[version]
    for name, text in zip((*names[:2], "memory.stat"), ("1000\n", "700\n", names[2]), strict=True):
        (tmp_path / name).write_text(text)
    assert CgroupMemory(str(tmp_path)).available_bytes() == 350


def test_a_cgroup_without_limit_does_not_decide(tmp_path: Path) -> None:
    for name, text in (("memory.max", "max\n"), ("memory.current", "700\n"), ("memory.stat", "anon 9\n")):
        (tmp_path / name).write_text(text)
    least = Least([SystemMemory(), CgroupMemory(str(tmp_path))])
    assert least.available_bytes() < 1 << 60
    assert least.name == "MemAvailable"


def test_more_free_cma_than_there_is_names_the_kernel_bug() -> None:
    sick = parse_meminfo(MEMINFO.format(cma_total=0, cma_free=27262976).encode())
    assert "CmaFree (26.0 GiB) is above CmaTotal (0.0 GiB)" in str(kho_bug(sick))
    assert kho_bug(parse_meminfo(MEMINFO.format(cma_total=32768, cma_free=1024).encode())) is None
    assert kho_bug({}) is None


def test_pressure_is_read_by_key() -> None:
    text = b"some avg10=12.50 avg60=1.00 avg300=0.00 total=4\nfull avg10=3.25 avg60=0.10 avg300=0.00 total=1\n"
    assert pressure(text) == (12.5, 3.25)
    assert pressure(b"") == (0.0, 0.0)


def test_the_driver_s_out_of_memory_is_counted_once_a_line(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    kmsg = Kmsg(str(path))
    line = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from x"
    os.write(writer, f"3,1,2,-;{line}\n".encode() * 3 + b"6,2,3,-;mgmt: port 4(mgmt-2) entered blocking state\n")
    os.write(writer, b"3,5,6,-;Out of memory: Killed process 4242 (python3) total-vm:1kB\n")
    kmsg.read()
    assert (kmsg.n_no_memory, kmsg.n_oom_kills) == (3, 1)
    assert "Killed process 4242" in kmsg.last_oom_kill
    assert len(kmsg.notable) == 4
    os.close(writer)


def test_a_kernel_log_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    kmsg = Kmsg(str(tmp_path / "none"))
    kmsg.read()
    assert kmsg.missing == f"{tmp_path / 'none'}: No such file or directory"


def proc_of(root: Path, pid: int, exe: str | None, comm: str, *argv: str) -> None:
    """A process as /proc shows it; without `exe`, one of another user."""
    here = root / str(pid)
    here.mkdir()
    (here / "comm").write_text(comm[:15] + "\n")
    (here / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
    if exe is not None:
        (here / "exe").symlink_to(exe)


@pytest.mark.parametrize(
    ("exe", "comm", "argv", "called"),
    [
        ("/usr/bin/earlyoom", "earlyoom", ["/usr/bin/earlyoom", "-r", "60"], "earlyoom"),
        ("/usr/bin/earlyoom (deleted)", "earlyoom", ["earlyoom"], "earlyoom"),
        (None, "systemd-oomd", ["/usr/lib/systemd/systemd-oomd"], "systemd-oomd"),
        ("/usr/bin/python3.12", "nohang", ["/usr/bin/python3", "/usr/sbin/nohang", "--monitor"], "nohang"),
        ("/usr/bin/python3.12", "python3", ["python3", "-u", "/usr/sbin/nohang", "-m"], "nohang"),
        ("/usr/bin/bash", "dgx-anti-oom.sh", ["bash", "/opt/dgx-anti-oom.sh"], "dgx-anti-oom"),
        ("/nix/store/x/bin/.earlyoom-wrapped", ".earlyoom-wrapp", ["earlyoom"], "earlyoom"),
        (None, ".earlyoom-wrapp", ["earlyoom"], "earlyoom"),
        ("/usr/bin/sha256sum", "sha256sum", ["sha256sum", "earlyoom"], None),
        ("/opt/ray/core/src/ray/raylet/raylet", "raylet", ["raylet", "--raylet_socket_name=x"], "Ray's memory monitor"),
        ("/usr/bin/grep", "grep", ["grep", "earlyoom"], None),
        ("/usr/bin/vim", "vim", ["vim", "/etc/default/earlyoom"], None),
        ("/usr/bin/journalctl", "journalctl", ["journalctl", "systemd-oomd"], None),
        ("/usr/bin/python3.12", "python3", ["python3", "-c", "import time", "earlyoom"], None),
        ("/usr/bin/python3.12", "python3", ["python3", "-m", "pydoc", "nohang"], None),
        ("/usr/bin/bash", "bash", ["bash", "-xc", "pgrep earlyoom", "earlyoom"], None),
        ("/usr/bin/tail", "tail", ["tail", "-f", "raylet.out"], None),
        ("/usr/bin/earlyoom-notify", "earlyoom-notify", ["earlyoom-notify"], None),
        ("", "kthreadd", [], None),
    ],
)
def test_a_killer_is_known_by_its_program_and_not_by_what_somebody_does_with_its_name(
    tmp_path: Path, exe: str | None, comm: str, argv: list[str], called: str | None
) -> None:
    proc_of(tmp_path, 77, exe or None, comm, *argv)
    assert [k["name"] for k in other_killers(str(tmp_path))] == ([called] if called else [])


def test_another_killer_is_named_and_a_search_for_it_is_not(tmp_path: Path) -> None:
    killer = tmp_path / "earlyoom"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", killer)
    log = tmp_path / "raylet"
    log.touch()
    running = subprocess.Popen([str(killer), "60"])
    watching = subprocess.Popen(["tail", "-f", str(log)[1:]], cwd="/")
    editing = subprocess.Popen(["tail", str(log), "-f"], cwd="/")
    search = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "systemd-oomd"])
    deadline = time.monotonic() + 20
    try:
        # A program that has just been started may not show its arguments yet.
        while running.pid not in (found := {k["pid"]: k for k in other_killers()}) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found[running.pid]["name"] == "earlyoom"
        assert "--avoid" in str(found[running.pid]["hint"])
        assert not {search.pid, watching.pid, editing.pid} & found.keys()
    finally:
        for process in (running, watching, editing, search):
            process.kill()
            process.wait(10)


# -- whom it kills -----------------------------------------------------------------------------------------------------


def test_a_rank_is_killed_whole_with_a_child_that_left_its_session(tree) -> None:
    main, child = tree
    stat = read_stat(main.pid)
    assert stat is not None
    target = Target("dsv41-rank@0", 0, "b1", main.pid, stat.start_ticks)
    assert target.refresh() == 2
    assert {v.pid for v in target.kill()} == {main.pid, child}
    assert gone(main.pid) and gone(child)
    assert target.refresh() == 0


def test_a_child_that_lost_its_parent_is_still_ours(tree) -> None:
    main, child = tree
    stat = read_stat(main.pid)
    assert stat is not None
    target = Target("dsv41-rank@0", 0, "b1", main.pid, stat.start_ticks)
    target.refresh()
    main.kill()
    main.wait(10)
    assert target.refresh() == 1
    assert [v.pid for v in target.kill()] == [child]
    assert gone(child)


def test_a_pid_that_was_used_again_is_never_killed(tree) -> None:
    main, child = tree
    stat = read_stat(main.pid)
    assert stat is not None
    target = Target("dsv41-rank@0", 0, "b1", main.pid, stat.start_ticks - 1)
    assert target.refresh() == 0
    assert target.kill() == []
    assert main.poll() is None and read_stat(child) is not None


# -- its process -------------------------------------------------------------------------------------------------------


def test_it_warns_then_kills_and_names_itself_first(tmp_path: Path, tree) -> None:
    main, child = tree
    cgroup = FakeCgroup(tmp_path / "cgroup", 200 * MIB)
    with running_guard(tmp_path, cgroup_dir=str(cgroup.directory)) as guard:
        guard.until("hello")
        guard.watch(main.pid)
        guard.until("sample")
        cgroup.leave(120 * MIB)
        warning = guard.until("warning")
        assert "is 0.12 GiB; below 0.10 GiB rank 0 is killed" in warning["sentence"]
        assert main.poll() is None
        cgroup.leave(90 * MIB)
        killed = guard.until("killed")
        assert (killed["boot"], killed["available"], killed["floor"]) == ("b1", 90 * MIB, 100 * MIB)
        whom = guard.until("killed-whom")
        assert {v["pid"] for v in whom["victims"]} == {main.pid, child}
        assert whom["holders"]
        assert gone(main.pid) and gone(child)


def test_it_goes_on_without_a_supervisor_and_tells_the_next_one(tmp_path: Path, tree) -> None:
    main, child = tree
    cgroup = FakeCgroup(tmp_path / "cgroup", 200 * MIB)
    with running_guard(tmp_path, cgroup_dir=str(cgroup.directory), exit_alone_s=5) as guard:
        guard.watch(main.pid)
        guard.until("sample")
        guard.sock.close()
        cgroup.leave(50 * MIB)
        assert gone(main.pid) and gone(child)
        guard.sock = guard.connect()
        hello = guard.until("hello")
        assert hello["last_kill"]["boot"] == "b1"
        assert {v["pid"] for v in hello["last_kill"]["victims"]} == {main.pid, child}
        assert hello["samples"]
        # With nobody to talk to and nothing to watch it goes away by itself.
        guard.sock.close()
        assert guard.process.wait(60) == 0


def test_without_a_rank_nobody_is_killed_however_little_is_left(tmp_path: Path, tree) -> None:
    main, child = tree
    cgroup = FakeCgroup(tmp_path / "cgroup", 10 * MIB)
    with running_guard(tmp_path, cgroup_dir=str(cgroup.directory)) as guard:
        stat = read_stat(main.pid)
        assert stat is not None
        guard.watch(main.pid, stat.start_ticks - 1)
        for _ in range(3):
            guard.until("sample")
        assert main.poll() is None and read_stat(child) is not None


def test_the_first_out_of_memory_of_the_driver_is_told(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    with running_guard(tmp_path, kmsg=str(path)) as guard:
        guard.until("hello")
        os.write(writer, b"3,1,2,-;NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)\n")
        said = guard.until("fact", kind="gpu-no-memory")
        assert said["first"] and said["n"] == 1
        os.write(writer, b"3,2,3,-;NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)\n")
        assert not guard.until("fact", kind="gpu-no-memory")["first"]
    os.close(writer)


def test_it_says_which_protection_it_could_not_get(tmp_path: Path) -> None:
    with running_guard(tmp_path) as guard:
        hardening = guard.until("hello")["facts"]["hardening"]
        assert set(hardening) == {"memory locked", "spared by the OOM killer", "runs before others"}
        score = Path(f"/proc/{guard.process.pid}/oom_score_adj").read_text().strip()
        assert (hardening["spared by the OOM killer"] == "done") == (score == "-1000")
        locked = next(
            line for line in Path(f"/proc/{guard.process.pid}/status").read_text().splitlines() if "VmLck" in line
        )
        assert (hardening["memory locked"] == "done") == (int(locked.split()[1]) > 0)


def test_nonsense_on_the_socket_changes_nothing(tmp_path: Path, tree) -> None:
    main, _ = tree
    with running_guard(tmp_path) as guard:
        for junk in (b"\0\xff", b"[]", b"7", b'{"watch": {"pid": "x"}}', b'{"configure": {}}'):
            guard.sock.send(junk)
        guard.until("fact", kind="misunderstood")
        guard.watch(main.pid)
        guard.until("sample")
        assert guard.process.poll() is None and main.poll() is None


def test_a_second_guard_of_the_same_node_leaves_at_once(tmp_path: Path) -> None:
    with running_guard(tmp_path) as guard:
        guard.until("hello")
        second = subprocess.run(guard.process.args, capture_output=True, text=True, timeout=30)
        assert second.returncode == 0
        assert "another guard watches this node already" in second.stderr
        guard.until("sample")


def test_a_supervisor_that_reads_nothing_is_let_go_and_told_everything_when_it_is_back(tmp_path: Path, tree) -> None:
    main, _ = tree
    cgroup = FakeCgroup(tmp_path / "cgroup", 200 * MIB)
    with running_guard(tmp_path, cgroup_dir=str(cgroup.directory)) as guard:
        guard.watch(main.pid)
        guard.until("sample")
        # As one that was frozen for hours: more is said to it than its buffer holds.
        frozen = guard.connect()
        deadline = time.monotonic() + 60
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while time.monotonic() < deadline:
                try:
                    frozen.send(b'{"watch": {"pid": "x"}}', socket.MSG_DONTWAIT)
                except BlockingIOError:
                    time.sleep(0.005)
        frozen.close()
        guard.sock.close()
        cgroup.leave(50 * MIB)
        guard.sock = guard.connect()
        guard.watch(main.pid)
        assert gone(main.pid)
        guard.sock.close()
        guard.sock = guard.connect()
        assert guard.until("hello")["last_kill"]["boot"] == "b1"
