"""The readers of /proc, on made-up trees with one fault each."""

from __future__ import annotations

from pathlib import Path

import pytest
from dsv41_supervisor.doctor import read_proc

from tests.unit.doctor import trees

KIB = 1024


def test_memory_is_read_in_bytes_from_the_lines_that_matter(tmp_path: Path) -> None:
    memory = read_proc.read_memory(trees.proc_tree(tmp_path))
    assert memory.total == 127_000_000 * KIB
    assert memory.available == 121_000_000 * KIB
    assert (memory.cma_total, memory.cma_free) == (262_144 * KIB, 201_000 * KIB)


def test_a_meminfo_without_memavailable_is_refused_by_name(tmp_path: Path) -> None:
    trees.proc_tree(tmp_path)
    trees.write(tmp_path / "meminfo", "MemTotal: 100 kB\nMemFree: 50 kB\n")
    with pytest.raises(ValueError, match="lacks MemAvailable"):
        read_proc.read_memory(tmp_path)


def test_a_kernel_without_cma_lines_has_none(tmp_path: Path) -> None:
    trees.proc_tree(tmp_path)
    trees.write(tmp_path / "meminfo", "MemTotal: 3 kB\nMemFree: 1 kB\nMemAvailable: 2 kB\n")
    assert read_proc.read_memory(tmp_path).cma_total is None


@pytest.mark.parametrize(("text", "is_open"), [(trees.OPEN, True), (trees.PROPRIETARY, False)])
def test_the_driver_file_says_open_or_proprietary(tmp_path: Path, text: str, is_open: bool) -> None:
    trees.write(tmp_path / "driver/nvidia/version", text)
    driver = read_proc.read_gpu_driver(tmp_path)
    assert driver is not None
    assert (driver.version, driver.open_module) == ("580.173.02", is_open)


def test_no_driver_file_is_no_driver_and_an_empty_one_is_unknown(tmp_path: Path) -> None:
    assert read_proc.read_gpu_driver(tmp_path) is None
    trees.write(tmp_path / "driver/nvidia/version", "")
    driver = read_proc.read_gpu_driver(tmp_path)
    assert driver is not None
    assert (driver.version, driver.open_module) == ("unknown", None)


def test_kernel_settings_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    kernel = read_proc.read_kernel(trees.proc_tree(tmp_path), tmp_path / "sys-tree")
    assert kernel.release == "6.17.0-1031-nvidia"
    assert kernel.sysctls == {"vm.max_map_count": "65530", "vm.overcommit_memory": "0", "fs.aio-max-nr": "65536"}
    assert kernel.cppc_autonomous is None


@pytest.mark.parametrize(("text", "on"), [("1\n", True), ("0\n", False)])
def test_cppc_autonomous_mode_is_read_where_the_processor_has_it(tmp_path: Path, text: str, on: bool) -> None:
    trees.proc_tree(tmp_path)
    trees.write(tmp_path / "s/module/cppc_cpufreq/parameters/auto_sel_mode", text)
    assert read_proc.read_kernel(tmp_path, tmp_path / "s").cppc_autonomous is on


def test_a_process_name_with_brackets_and_spaces_is_read_whole(tmp_path: Path) -> None:
    trees.add_process(tmp_path, 17, "a) (b c", parent=4)
    table = read_proc.read_processes(tmp_path)
    assert (table[17].name, table[17].parent) == ("a) (b c", 4)


def test_another_memory_killer_is_found_with_what_to_do(tmp_path: Path) -> None:
    trees.add_process(tmp_path, 61, "earlyoom", argv="/usr/bin/earlyoom -r 60")
    trees.add_process(tmp_path, 62, "grep", argv="grep -c earlyoom")
    (found,) = read_proc.read_killers(tmp_path)
    assert (found.pid, found.name) == (61, "earlyoom")
    assert found.why


def test_gpu_users_are_those_of_others_that_hold_a_compute_device(tmp_path: Path) -> None:
    trees.hold(trees.add_process(tmp_path, 40, "Xorg"), "/dev/nvidia0", "/dev/nvidiactl")
    trees.hold(trees.add_process(tmp_path, 41, "nvidia-smi"), "/dev/nvidiactl")
    trees.hold(trees.add_process(tmp_path, 42, "python"), "/dev/nvidia0", "/dev/nvidia-uvm")
    table = read_proc.read_processes(tmp_path)
    (user,) = read_proc.gpu_users(table, {42}, tmp_path)
    assert (user.pid, user.name, user.why) == (40, "Xorg", "holds /dev/nvidia0")


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        (("/nix/store/x/bin/python3", "-m", "dsv41_supervisor", "supervisor", "--node", "spark1"), True),
        (("/usr/bin/python3", "/usr/bin/dsv41", "supervisor"), True),
        (("/nix/store/x/bin/.dsv41-wrapped", "supervisor"), True),
        (("dsv41", "doctor", "--node", "supervisor"), False),
        (("python3", "-m", "dsv41_supervisor", "rank", "1"), False),
        (("vim", "supervisor"), False),
    ],
)
def test_a_supervisor_is_known_by_what_it_was_started_with(
    tmp_path: Path, words: tuple[str, ...], is_one: bool
) -> None:
    trees.write(tmp_path / "7/cmdline", "\0".join(words) + "\0")
    running = {7: read_proc.Running(7, "python3", 1, 7), 8: read_proc.Running(8, "gone", 1, 8)}
    assert read_proc.supervisors(running, tmp_path) == ({7} if is_one else set())


def test_a_held_port_is_named_with_its_holder_and_ours_are_told_apart(tmp_path: Path) -> None:
    trees.proc_tree(tmp_path)
    trees.listen(tmp_path, 30000, 5001)
    trees.listen(tmp_path, 7141, 5002)
    trees.listen(tmp_path, 9999, 5003)
    trees.hold(trees.add_process(tmp_path, 70, "vllm"), "socket:[5001]")
    trees.hold(trees.add_process(tmp_path, 71, "dsv41"), "socket:[5002]")
    table = read_proc.read_processes(tmp_path)
    engine, supervisor, gateway = read_proc.read_ports(
        [("engine", 30000), ("supervisor", 7141), ("gateway", 8888)], table, {71}, tmp_path
    )
    assert engine.holder is not None and (engine.holder.pid, engine.holder.name, engine.ours) == (70, "vllm", False)
    assert supervisor.ours
    assert gateway.holder is None


def test_a_port_whose_holder_cannot_be_seen_is_held_all_the_same(tmp_path: Path) -> None:
    trees.proc_tree(tmp_path)
    trees.listen(tmp_path, 30000, 5001)
    (port,) = read_proc.read_ports([("engine", 30000)], {}, set(), tmp_path)
    assert port.holder is not None and port.holder.name == "a process that cannot be seen"


def test_the_mount_of_a_path_is_the_longest_one_above_it(tmp_path: Path) -> None:
    mounts = read_proc.read_mounts(trees.proc_tree(tmp_path))

    def at(path: str) -> str:
        mount = read_proc.mount_of(path, mounts, real=str)
        assert mount is not None
        return mount.source

    assert at("/models/v41") == "192.0.2.1:/models"
    assert at("/models-else") == "/dev/nvme0n1p2"
    assert at("/with space/x") == "/dev/sdb1"


def test_of_two_mounts_on_one_point_the_later_counts(tmp_path: Path) -> None:
    trees.proc_tree(tmp_path)
    with (tmp_path / "self/mountinfo").open("a") as file:
        file.write("40 30 259:9 / /models rw - xfs /dev/nvme1n1 rw\n")
    mount = read_proc.mount_of("/models/v41", read_proc.read_mounts(tmp_path), real=str)
    assert mount is not None and mount.filesystem == "xfs"


def test_descendants_are_found_by_parent_and_by_session(tmp_path: Path) -> None:
    trees.add_process(tmp_path, 10, "dsv41")
    trees.add_process(tmp_path, 11, "child", parent=10)
    trees.add_process(tmp_path, 12, "grandchild", parent=11)
    trees.add_process(tmp_path, 13, "orphan", parent=1, session=10)
    trees.add_process(tmp_path, 14, "stranger")
    assert read_proc.descendants(read_proc.read_processes(tmp_path), [10]) == {10, 11, 12, 13}


def test_processes_that_may_not_be_looked_into_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees.add_process(tmp_path, 40, "Xorg")
    trees.add_process(tmp_path, 41, "dsv41")
    table = read_proc.read_processes(tmp_path)
    listdir = read_proc.os.listdir

    def refused(path: Path) -> list[str]:
        if "/40/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    # Root reads everything: the refusal of an ordinary user can only be made up here.
    monkeypatch.setattr(read_proc.os, "listdir", refused)
    assert read_proc.n_unseen(table, tmp_path) == 1
    assert read_proc.gpu_users(table, set(), tmp_path) == ()
