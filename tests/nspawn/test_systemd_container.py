"""A declared node whose engine is an image, under a real systemd: the rendered units of tests/eval/golden-container.

One node: what is asked is whether podman gets on with the unit's hardening, and systemd with what podman starts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from declared import (
    GOLDEN,
    SETTINGS,
    Node,
    assert_nothing_is_left,
    fleet_settings,
    on_this_machine,
    said_by,
    serving,
    wait_for,
)
from dsv41_supervisor.rank.plan import Boot, launch_plan
from dsv41_supervisor.rank.process import ENGINE_NAMES
from dsv41_supervisor.settings import parse
from machine import OPT, SHARED, Machine, why_not

from tests.harness.podman import NAME, missing, write_image

IN_CONTAINER = GOLDEN.parent / "golden-container"
STORE = "/var/lib/containers"
# nspawn lets nobody have a key ring.
CONTAINERS_CONF = "[containers]\nkeyring = false\n"

# Without CAP_SYS_RESOURCE, which a test machine may lack, a limit cannot be lifted to podman's default.
PODMAN = """#!/bin/sh
[ "$1" = run ] && shift && set -- run --ulimit nproc=4096:4096 "$@"
exec podman "$@"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, demo_checkpoint: Path, demo_revision: str) -> Iterator[Node]:
    for reason in (why_not(), missing()):
        if reason is not None:
            pytest.skip(f"no machine with systemd and podman: {reason}")
    work = tmp_path_factory.mktemp("container")
    (work / "shared").mkdir()
    machine = Machine(f"dsv41c{work.parent.name.rpartition('-')[2]}", work, work / "shared")
    node = Node("spark1", 0, machine)
    try:
        machine.boot()
        # Overlayfs takes no overlayfs to write to, and the machine's own disk is one.
        machine.run("mkdir", "-p", STORE)
        machine.run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", STORE)
        machine.write("/etc/containers/containers.conf", CONTAINERS_CONF)
        machine.write("/srv/podman", PODMAN, 0o755)
        settings = fleet_settings(1, demo_revision)
        del settings["engine"]["python"]
        settings["engine"]["container"] = {
            "image": f"{NAME}@sha256:{'0' * 64}",
            "podman": "/srv/podman",
            "python": f"{OPT}/venv/bin/python",
            "mounts": ["/etc/ld.so.cache", "/usr", OPT, "/srv/script.json"],
        }
        node.install(settings, demo_checkpoint)
        for path in IN_CONTAINER.glob("*.service"):
            (machine.units / path.name).write_text(on_this_machine(path.read_text()))
        for name, target in (("polkit.rules", "/etc/polkit-1/rules.d/50-dsv41.rules"),
                             ("tmpfiles.conf", "/etc/tmpfiles.d/dsv41.conf")):  # fmt: skip
            machine.write(target, on_this_machine((IN_CONTAINER / name).read_text()))
        machine.run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/dsv41.conf")
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "start", "dsv41-supervisor")
        refused = machine.run("systemctl", "start", "dsv41-rank@0", check=False, timeout_s=120)
        assert refused.returncode != 0
        wait_for(lambda: "container-image" in json.dumps(node.status()), "the missing image to be refused", 30, node)
        wait_for(lambda: node.status().get("state") == "failed", "all of that boot to be stopped", 60, node)

        write_image(machine.shared / "image.tar")
        machine.run("podman", "import", f"{SHARED}/image.tar", f"{NAME}:test")
        digest = machine.run("podman", "image", "inspect", "--format", "{{.Digest}}", f"{NAME}:test").stdout.strip()
        settings["engine"]["container"]["image"] = f"{NAME}@{digest}"
        machine.write(SETTINGS, json.dumps(settings))
        machine.run("systemctl", "restart", "dsv41-supervisor")
        yield node
        assert_nothing_is_left([node])
    finally:
        machine.power_off()

# What nvidia-ctk's spec makes of a container, as far as it goes without a GPU: a device node, a variable, a file of the
# machine, and a hook that writes into the root, as update-ldcache does.
CDI = {
    "cdiVersion": "0.5.0",
    "kind": "dsv41.example.org/gpu",
    "devices": [{"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/full"}]}}],
    "containerEdits": {
        "env": ["DSV41_CDI=injected"],
        "mounts": [{"hostPath": "/etc/hostname", "containerPath": "/driver/libcuda.so.1", "options": ["ro", "bind"]}],
        "hooks": [{"hookName": "createContainer", "path": "/srv/hook", "args": ["hook"]}],
    },
}
HOOK = r"""#!/bin/sh
bundle=$(sed 's/.*"bundle": *"\([^"]*\)".*/\1/')
root=$(grep -o '"root":{"path":"[^"]*"' "$bundle/config.json" | cut -d'"' -f6)
touch "$root/etc/ld.so.cache.new"
"""


def containers(node: Node) -> list[str]:
    return node.machine.run("podman", "ps", "--all", "--format", "{{.Names}}").stdout.split()


def members(node: Node) -> dict[str, str]:
    """Processes of the rank's cgroup: pid to name."""
    group = node.machine.show(node.unit, "ControlGroup")["ControlGroup"]
    done = node.machine.run("cat", f"/sys/fs/cgroup{group}/cgroup.procs")
    return {p: node.machine.run("cat", f"/proc/{p}/comm", check=False).stdout.strip() for p in done.stdout.split()}


def test_the_engine_runs_in_the_units_own_cgroup_as_its_user_without_rights(node: Node) -> None:
    serving([node])
    assert node.is_active()
    names = members(node)
    assert {"podman", "conmon", "podman-init", *ENGINE_NAMES} <= set(names.values()), (names, said_by([node]))
    (scheduler,) = [pid for pid, name in names.items() if name.startswith("sglang::sched")]
    status = node.machine.run("cat", f"/proc/{scheduler}/status").stdout
    uid = node.machine.run("id", "-u", "dsv41").stdout.strip()
    assert re.search(rf"^Uid:\s+{uid}\s+{uid}\s", status, re.M) and re.search(r"^CapBnd:\s+0+$", status, re.M)
    assert node.machine.run("cat", f"/proc/{scheduler}/oom_score_adj").stdout.strip() == "500"
    limits = node.machine.run("cat", f"/proc/{scheduler}/limits").stdout
    assert re.search(r"^Max locked memory\s+(unlimited\s+unlimited|(\d+)\s+\2)\s", limits, re.M), limits


def test_stop_takes_the_container_and_its_record_away(node: Node) -> None:
    serving([node])
    assert len(containers(node)) == 1
    node.machine.run("systemctl", "stop", node.unit)
    assert containers(node) == []
    wait_for(lambda: node.status().get("state") == "down", "the fleet to be down", 60, node)


def test_a_rank_that_is_killed_leaves_nothing_and_comes_back(node: Node) -> None:
    serving([node])
    before, (name,) = node.invocation(), containers(node)
    node.machine.run("kill", "-KILL", node.main_pid())
    wait_for(lambda: node.invocation() not in ("", before) and node.status().get("state") == "serving",
             "the fleet to come back", 120, node)  # fmt: skip
    assert len(containers(node)) == 1 and containers(node) != [name]


def test_the_doctor_asks_podman_through_the_unit(node: Node) -> None:
    done = node.machine.dsv41("doctor", "--json", "--timeout", "20", "--settings", SETTINGS, check=False)
    told = json.loads(done.stdout)
    assert not [f for f in told["findings"] if f["check"].startswith("container-")], told["findings"]
    shown = node.machine.show("dsv41-container", "ExecMainStatus", "Result")
    assert shown == {"ExecMainStatus": "0", "Result": "success"}


def test_a_cdi_device_gets_in_with_its_hook_as_podman_is_told_by_the_plan(node: Node) -> None:
    """A hook that cannot write ends the start: with --read-only, none of nvidia-ctk's can (crun 1.8.1)."""
    machine = node.machine
    machine.write("/srv/hook", HOOK, 0o755)
    machine.write("/etc/cdi/dsv41-test.json", json.dumps(CDI))
    settings = json.loads(machine.run("cat", SETTINGS).stdout)
    plan = launch_plan(parse(json.dumps(settings)), node.name, Boot("x", 1, 20000)).argv
    at = plan.index(settings["engine"]["container"]["image"])
    # Without what only a rank has: its name and label, its files, the Python in the image.
    told = [word for word in plan[2:at] if word.startswith("--") and "=" in word or word in ("--rm", "--init")]
    shown = "echo $DSV41_CDI; ls -d /dev/full /driver/libcuda.so.1 /etc/ld.so.cache.new; touch /etc/mine || echo no"
    done = machine.run(
        "/srv/podman", "run", *told, "--user=65534:65534", "--ulimit=nofile=1024:1024", "--volume=/usr:/usr:ro",
        "--device", "dsv41.example.org/gpu=all", plan[at], "/bin/sh", "-c", shown,
    )  # fmt: skip
    assert done.stdout.split() == ["injected", "/dev/full", "/driver/libcuda.so.1", "/etc/ld.so.cache.new", "no"]
