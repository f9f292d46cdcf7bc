"""A declared fleet under a real systemd: what an operator does with systemctl, and what systemd does by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from declared import (
    API_KEY,
    BOOT_S,
    FLEET_KEY,
    SETTINGS,
    Node,
    assert_nothing_is_left,
    fleet_settings,
    said_by,
    serving,
    told,
    wait_for,
)
from dsv41_supervisor.journal import Event
from machine import OPT, Machine, why_not

CAP_KILL, CAP_SYS_PTRACE = 1 << 5, 1 << 19
CAP_SYSLOG = 1 << 34
"""Which a container has not."""
ASK_BY_POLKIT = """
import asyncio, sys
from dsv41_supervisor.errors import Dsv41Error
from dsv41_supervisor.units.systemd import SystemdUnits
async def main():
    units = SystemdUnits(sys.argv[1:])
    await units.open()
    for unit in sys.argv[1:]:
        try:
            await units.start(unit)
            print(unit, "started")
            await units.stop(unit, 0)
            print(unit, "stopped")
        except Dsv41Error as error:
            print(unit, "refused:", error)
    await units.close(stop_all=False)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, demo_checkpoint: Path, demo_revision: str
) -> Iterator[list[Node]]:
    """Three declared nodes, each on a machine of its own; supervisors, guards and the gateway run."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no machine with systemd: {reason}")
    settings = fleet_settings(3, demo_revision)
    nodes: list[Node] = []
    try:
        for rank in range(3):
            work = tmp_path_factory.mktemp(f"node{rank}")
            (work / "shared").mkdir()
            first = nodes[0].machine if nodes else None
            suffix = work.parent.name.rpartition("-")[2]
            machine = Machine(f"dsv41n{rank}x{suffix}", work, work / "shared", first)
            nodes.append(Node(f"spark{rank + 1}", rank, machine))
            machine.boot()
            nodes[-1].install(settings, demo_checkpoint)
        for node in nodes:
            node.machine.run("systemctl", "start", "dsv41-supervisor")
        nodes[0].machine.run("systemctl", "start", "dsv41-gateway")
        yield nodes
        assert_nothing_is_left(nodes)
    finally:
        for node in reversed(nodes):
            node.machine.power_off()


def wait_for_text(node: Node, unit: str, text: str) -> None:
    """A status is told when the unit is active already, and systemd reads it in its own time."""
    wait_for(lambda: node.machine.show(unit, "StatusText")["StatusText"] == text, f"{unit} to say {text!r}", 60, node)


def test_a_supervisor_says_what_it_does_and_is_no_longer_root(fleet: list[Node]) -> None:
    for node in fleet:
        shown = node.machine.show("dsv41-supervisor", "ActiveState", "User", "WatchdogUSec", "MainPID")
        assert (shown["ActiveState"], shown["User"], shown["WatchdogUSec"]) == ("active", "dsv41-supervisor", "10s")
        expected = ("fleet down; " if node.rank == 0 else "") + f"rank {node.rank} on {node.name} absent"
        wait_for_text(node, "dsv41-supervisor", expected)
        status = node.machine.run("cat", f"/proc/{shown['MainPID']}/status").stdout
        held = int(re.search(r"^CapEff:\s+(\S+)$", status, re.M).group(1), 16)  # type: ignore[union-attr]
        assert held & ~CAP_SYSLOG == CAP_KILL | CAP_SYS_PTRACE, hex(held)
        rss_kib = int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.M).group(1))  # type: ignore[union-attr]
        print(f"{node.name}: supervisor RSS {rss_kib / 1024:.1f} MiB")


def test_no_unit_has_a_secret_in_its_arguments_or_environment(fleet: list[Node]) -> None:
    serving(fleet)
    for node in fleet:
        found = node.machine.run("sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null", check=False)
        assert FLEET_KEY not in found.stdout
        assert API_KEY not in found.stdout


def test_systemctl_start_of_rank_0_brings_the_fleet_up_and_stop_takes_it_down(fleet: list[Node]) -> None:
    head = fleet[0].machine
    head.run("systemctl", "stop", "dsv41-rank@0")
    wait_for(lambda: fleet[0].status().get("state") == "down", "the fleet to be down", 60, *fleet)
    head.run("systemctl", "start", "dsv41-rank@0", timeout_s=BOOT_S)
    assert fleet[0].status()["state"] == "serving"
    # A worker's unit is active when its rank has told systemd so, which may be a moment after the head's is.
    wait_for(lambda: all(node.is_active() for node in fleet), "every unit to be active", 60, *fleet)
    for node in fleet:
        wait_for_text(node, node.unit, "ready")
    asked = head.dsv41("smoke", "--settings", SETTINGS, "--json", check=False)
    assert asked.returncode == 0, asked.stdout + asked.stderr
    before = [node.invocation() for node in fleet]
    head.run("systemctl", "start", "dsv41-rank@0")
    assert [node.invocation() for node in fleet] == before

    head.run("systemctl", "stop", "dsv41-rank@0")
    wait_for(lambda: fleet[0].status().get("state") == "down", "the fleet to be down", 60, *fleet)
    for node in fleet:
        shown = node.machine.show(node.unit, "ActiveState", "Result")
        assert shown == {"ActiveState": "inactive", "Result": "success"}, (node.name, shown)
    assert "stopped by hand (systemctl stop dsv41-rank@0)" in told(fleet[0], Event.STOPPED_BY_HAND)
    assert head.show("dsv41-supervisor", "StatusText")["StatusText"].startswith("fleet down")


def test_a_rank_killed_by_hand_is_a_loss_and_the_fleet_comes_back(fleet: list[Node]) -> None:
    serving(fleet)
    before = [node.invocation() for node in fleet]
    fleet[1].machine.run("kill", "-9", fleet[1].main_pid())
    wait_for(lambda: told(fleet[0], Event.RECOVERY_STARTED).count("recovering"), "the recovery", 60, *fleet)
    wait_for(lambda: not set(before) & {node.invocation() for node in fleet}, "ranks started anew", BOOT_S, *fleet)
    wait_for(lambda: fleet[0].status().get("state") == "serving", "the fleet to serve again", BOOT_S, *fleet)
    # A unit is active when its rank has told systemd so, which may be a moment after the head knew.
    wait_for(lambda: all(node.is_active() for node in fleet), "every unit to be active", 60, *fleet)


def test_supervisors_restarted_while_serving_keep_every_rank(fleet: list[Node]) -> None:
    serving(fleet)
    ranks = [node.main_pid() for node in fleet]
    for node in (fleet[1], fleet[0]):
        node.machine.run("systemctl", "restart", "dsv41-supervisor")
        wait_for(lambda: fleet[0].status().get("state") == "serving", f"{node.name} taken up again", 60, *fleet)
    assert [node.main_pid() for node in fleet] == ranks, said_by(fleet)
    assert "adopted boot" in told(fleet[0], Event.FLEET_ADOPTED)


def test_a_supervisor_that_stands_still_is_ended_by_the_watchdog_and_its_rank_lives_on(fleet: list[Node]) -> None:
    serving(fleet)
    ranks = [node.main_pid() for node in fleet]
    frozen = fleet[0].main_pid("dsv41-supervisor")
    fleet[0].machine.run("kill", "-STOP", frozen)
    wait_for(
        lambda: fleet[0].main_pid("dsv41-supervisor") not in ("0", frozen) and fleet[0].is_active("dsv41-supervisor"),
        "another supervisor", 60, fleet[0],
    )  # fmt: skip
    assert "Watchdog timeout (limit 10s)" in fleet[0].machine.journal("--unit=dsv41-supervisor")
    wait_for(lambda: fleet[0].status().get("state") == "serving", "the fleet to be taken over", 60, *fleet)
    assert [node.main_pid() for node in fleet] == ranks, said_by(fleet)


def test_units_that_changed_leave_a_running_rank_alone(fleet: list[Node]) -> None:
    """What a switch does to it: other files, and systemd reads them. X-RestartIfChanged= is then NixOS's to heed."""
    serving(fleet)
    before = [(node.invocation(), node.main_pid()) for node in fleet]
    with fleet[1].changed(fleet[1].unit, "TimeoutStopSec=77"):
        assert fleet[1].machine.show(fleet[1].unit, "TimeoutStopUSec")["TimeoutStopUSec"] == "1min 17s"
        assert fleet[0].status()["state"] == "serving"
    assert [(node.invocation(), node.main_pid()) for node in fleet] == before


def test_packing_by_hand_makes_the_rows_and_leaves_good_ones_alone(fleet: list[Node]) -> None:
    machine = fleet[1].machine
    machine.run("systemctl", "stop", "dsv41-rank@0", check=False)
    files = "cd /var/lib/dsv41/rows && stat -c '%n %U %i %Y' *"
    machine.run("sh", "-c", "rm /var/lib/dsv41/rows/*")
    machine.run("systemctl", "start", "dsv41-pack")
    assert machine.show("dsv41-pack", "Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}
    made = machine.run("sh", "-c", files).stdout
    assert re.search(r"^engram-l\d+-r1of3\.bin dsv41 ", made, re.M), made
    machine.run("systemctl", "start", "dsv41-pack")
    assert machine.run("sh", "-c", files).stdout == made


def test_a_rank_that_stands_still_is_ended_by_systemd_where_nobody_else_can(fleet: list[Node]) -> None:
    """Its own supervisor is away, so neither the lease's end nor a stop reaches it."""
    worker = fleet[1]
    fleet[0].machine.run("systemctl", "stop", "dsv41-rank@0")
    wait_for(lambda: fleet[0].status().get("state") == "down", "the fleet to be down", 60, *fleet)
    with worker.changed(worker.unit, "WatchdogSec=10"):
        serving(fleet)
        worker.machine.run("systemctl", "stop", "dsv41-supervisor")
        worker.machine.run("kill", "-STOP", worker.main_pid())
        journal = f"--unit={worker.unit}"
        wait_for(lambda: "Watchdog timeout (limit 10s)" in worker.machine.journal(journal), "its end", 60, worker)
        wait_for(lambda: not worker.is_active(), "the rank to be gone", 60, worker)
        assert worker.machine.show(worker.unit, "Result")["Result"] == "watchdog"
        worker.machine.run("systemctl", "start", "dsv41-supervisor")
        wait_for(lambda: fleet[0].status().get("state") == "serving", "the fleet to serve again", BOOT_S, *fleet)


def test_a_start_that_cannot_be_is_refused_with_its_reason(fleet: list[Node]) -> None:
    head, worker = fleet[0].machine, fleet[2].machine
    head.run("systemctl", "stop", "dsv41-rank@0")
    wait_for(lambda: fleet[0].status().get("state") == "down", "the fleet to be down", 60, *fleet)
    worker.run("systemctl", "stop", "dsv41-supervisor")
    try:
        done = head.run("systemctl", "start", "dsv41-rank@0", check=False, timeout_s=BOOT_S)
        assert done.returncode != 0
        assert "not admitted: the boot failed. Run dsv41 status" in head.journal("--unit=dsv41-rank@0")
        # It refuses at once, and has failed when all that it began is stopped: only then is another start its own.
        wait_for(lambda: fleet[0].status().get("state") == "failed", "the boot to have failed", 60, *fleet)
        refusals = fleet[0].status()["refusals"]
        assert re.search("supervisor.* does not answer", refusals[0]["what"]), refusals
        assert fleet[0].status()["wanted"] == "down"
    finally:
        worker.run("systemctl", "start", "dsv41-supervisor")
    serving(fleet)


def test_a_rank_of_another_node_is_refused_by_its_program(fleet: list[Node]) -> None:
    done = fleet[0].machine.run("systemctl", "start", "dsv41-rank@2", check=False)
    assert done.returncode != 0
    assert "spark1 runs rank 0, not 2. Start dsv41-rank@0 here" in fleet[0].machine.journal("--unit=dsv41-rank@2")


def test_the_supervisors_user_may_start_its_own_units_alone(fleet: list[Node]) -> None:
    head = fleet[0].machine
    done = head.run(
        "setpriv", "--reuid=dsv41-supervisor", "--regid=dsv41-supervisor", "--clear-groups", f"{OPT}/venv/bin/python",
        "-c", ASK_BY_POLKIT, "dsv41-probe", "dsv41-rank@1", "dbus", "dsv41-gateway",
    )  # fmt: skip
    said = done.stdout.splitlines()
    assert said[:2] == ["dsv41-probe started", "dsv41-probe stopped"], done.stdout + done.stderr
    # The last two run already, so it is stopping them that is refused.
    refused = [line.split(" refused: ")[0] for line in said if "may not be" in line and "by this user" in line]
    assert refused == ["dsv41-rank@1", "dbus", "dsv41-gateway"], said
    assert head.run("systemctl", "is-active", "dbus", "dsv41-gateway", check=False).stdout == "active\nactive\n"


def test_the_packet_filter_is_looked_at_by_a_unit_that_alone_may_do_so(fleet: list[Node]) -> None:
    """nft itself stands in: what is shown is who runs it, with which rights, and that its answer is judged."""
    head = fleet[0].machine
    head.write(
        "/etc/dsv41-nft/nft",
        '#!/bin/sh\necho "{\\"nftables\\": [{\\"table\\": {\\"family\\": \\"inet\\", \\"name\\": '
        '\\"caps-$(sed -n s/CapEff:.//p /proc/self/status)\\"}}]}"\n',
        0o755,
    )  # fmt: skip
    drop_in = "/run/systemd/system/dsv41-firewall.service.d/nft.conf"
    head.write(drop_in, "[Service]\nEnvironment=PATH=/etc/dsv41-nft:/usr/bin:/bin\n")
    head.run("systemctl", "daemon-reload")
    for other in fleet[1:]:
        # Where this machine has an nft, theirs would answer too.
        other.machine.write(drop_in, "[Service]\nEnvironment=PATH=/nowhere\n")
        other.machine.run("systemctl", "daemon-reload")
    done = head.dsv41("doctor", "--settings", SETTINGS, "--node", "spark1", "--timeout", "20", check=False)
    said = " ".join(done.stdout.split())
    unread = "the unit dsv41-firewall left no answer: journalctl -u dsv41-firewall. (spark2, spark3)"
    assert unread in said, done.stdout + done.stderr
    left = "/run/dsv41/firewall.json"
    (table,) = json.loads(head.run("cat", left).stdout)["nftables"]
    assert int(table["table"]["name"].removeprefix("caps-"), 16) == 1 << 12, "CAP_NET_ADMIN and nothing else"
    assert head.run("stat", "-c", "%U %a", left).stdout == "dsv41-supervisor 640\n"


def test_the_journal_finds_every_line_by_node_and_stage_and_explains_events(fleet: list[Node]) -> None:
    serving(fleet)
    head = fleet[0].machine
    head.run("journalctl", "--update-catalog")
    explained = head.journal("-x", f"MESSAGE_ID={Event.FLEET_SERVING.value}")
    assert "serves after" in explained
    assert "Subject: The fleet serves" in explained
    raw = head.run("journalctl", "--output=json", "-n1", f"MESSAGE_ID={Event.STAGE_DONE.value}").stdout
    line = json.loads(raw)
    wanted = {"DSV41_NODE": "spark1", "DSV41_RANK": "0", "DSV41_STAGE": "pack", "DSV41_WORLD_SIZE": "3"}
    assert {k: line[k] for k in wanted} == wanted
    assert line["_SYSTEMD_UNIT"] == "dsv41-supervisor.service"
    # Lines that the engine prints by itself carry the fields too (LogExtraFields=).
    assert head.journal("DSV41_RANK=0", "_SYSTEMD_UNIT=dsv41-rank@0.service").count("\n") > 5
    assert fleet[0].machine.dsv41("logs", "spark2", "--settings", SETTINGS).stdout.strip()


def test_systemd_has_nothing_to_say_about_the_rendered_units(fleet: list[Node]) -> None:
    for node in fleet:
        units = [f"/etc/systemd/system/{path.name}" for path in node.machine.units.glob("dsv41-*.service")]
        units = [name.replace("@.", f"@{node.rank}.") for name in units]
        assert len(units) >= 5
        # It ends with 0 whatever it finds, and systemd 252 knows every key that we use.
        done = node.machine.run("systemd-analyze", "verify", "--man=no", *units)
        assert (done.stdout, done.stderr) == ("", "")


def test_the_fleet_comes_back_with_a_head_that_was_rebooted(
    fleet: list[Node], demo_checkpoint: Path, demo_revision: str, tmp_path: Path
) -> None:
    old = fleet[0].machine
    keep_state_on_disk(fleet[0])
    serving(fleet)
    generation = fleet[0].status()["boot"]["generation"]
    old.run("systemctl", "--no-block", "poweroff")
    assert old.process is not None
    old.process.wait(180)
    old.power_off()
    record = json.loads((old.shared / "state/fleet.json").read_text())
    assert record["wanted"] == "up", "a shutdown was taken for an order to the fleet"

    (tmp_path / "work").mkdir()
    again = Machine(old.name, tmp_path / "work", old.shared, fleet[1].machine)
    fleet[0].machine = again
    again.boot()
    fleet[0].install(fleet_settings(3, demo_revision), demo_checkpoint)
    keep_state_on_disk(fleet[0])
    again.run("systemctl", "start", "dsv41-supervisor", "dsv41-gateway")
    wait_for(lambda: fleet[0].status().get("state") == "serving", "the fleet to be back", BOOT_S, *fleet)
    assert fleet[0].status()["boot"]["generation"] > generation
    wait_for(lambda: all(node.is_active() for node in fleet), "every unit to be active", 60, *fleet)


def keep_state_on_disk(node: Node) -> None:
    """The supervisor's state outlives the machine's root, as a drive does."""
    script = (
        "systemctl stop dsv41-supervisor dsv41-guard; mkdir -p /srv/shared/state; "
        "cp -an /var/lib/dsv41/supervisor/. /srv/shared/state/; chown -R dsv41-supervisor: /srv/shared/state; "
        "mount --bind /srv/shared/state /var/lib/dsv41/supervisor"
    )
    node.machine.run("sh", "-c", script)
    node.machine.run("systemctl", "start", "dsv41-supervisor")


def test_a_missing_key_is_named_and_not_tried_again(fleet: list[Node]) -> None:
    machine = fleet[2].machine
    machine.run("systemctl", "stop", "dsv41-rank@0", check=False)
    machine.run("mv", "/etc/dsv41/fleet-key", "/etc/dsv41/fleet-key.away")
    try:
        machine.run("systemctl", "restart", "dsv41-supervisor", check=False)
        wait_for(lambda: machine.show("dsv41-supervisor", "ActiveState")["ActiveState"] == "failed", "its end", 60)
        assert machine.show("dsv41-supervisor", "ExecMainStatus")["ExecMainStatus"] == "78"
        said = machine.journal("--unit=dsv41-supervisor", "--lines=20")
        assert "the fleet key /etc/dsv41/fleet-key cannot be read: No such file or directory" in said
    finally:
        machine.run("mv", "/etc/dsv41/fleet-key.away", "/etc/dsv41/fleet-key")
        machine.run("systemctl", "start", "dsv41-supervisor")
    # It may have been away for long enough to be a loss: stopping rank 0 in a recovery would stop nothing.
    serving(fleet)
