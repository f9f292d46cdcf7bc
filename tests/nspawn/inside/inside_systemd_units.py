"""What only systemd can do wrong. Runs inside a machine of `machine.py`, never by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench import NAME, SystemdBench, line, until_state
from dsv41_supervisor.errors import Dsv41Error, Exit
from dsv41_supervisor.units import UnitState, UnitStatus
from dsv41_supervisor.units.systemd import SystemdUnits, unit_path

SLEEPER = "import time; print('started'); time.sleep(600)"
NOTIFYING = """\
[Service]
Type=notify
NotifyAccess=all
ExecStart=/bin/sh -c 'echo loading; while ! test -e /run/dsv41-ready; do sleep 0.05; done; \\
  systemd-notify --ready; sleep 600'
"""
NEEDING = """\
[Unit]
Requires=dsv41-needed.service
After=dsv41-needed.service
[Service]
ExecStart=sleep 9
"""
ASK = """
import asyncio, sys
from dsv41_supervisor.errors import Dsv41Error
from dsv41_supervisor.units.systemd import SystemdUnits
async def main():
    units = SystemdUnits(sys.argv[1:])
    await units.open()
    for unit in sys.argv[1:]:
        try:
            await units.start(unit)
            print(unit, "may be started:", (await units.stop(unit, 10)).state)
        except Dsv41Error as error:
            print(unit, "refused:", error)
    await units.close(stop_all=False)
asyncio.run(main())
"""


def systemctl(*args: str) -> str:
    return subprocess.run(["systemctl", *args], check=True, capture_output=True, text=True).stdout.strip()


def write_unit(name: str, text: str) -> None:
    Path(f"/run/systemd/system/{name}").write_text(text)
    systemctl("daemon-reload")


async def ended(queue: asyncio.Queue[UnitStatus]) -> UnitStatus:
    return await asyncio.wait_for(queue.get(), 30)


@pytest.mark.parametrize("name", ["dsv41-rank@0.service", "dbus.service", "0-digit_first.service"])
def test_a_path_is_escaped_as_systemd_does(name: str) -> None:
    path = subprocess.run(
        ["busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager",
         "LoadUnit", "s", name], check=True, capture_output=True, text=True,
    ).stdout.split('"')[1]  # fmt: skip
    assert unit_path(name) == path


async def test_a_unit_without_a_file_says_what_declares_it(bench: SystemdBench) -> None:
    units = await bench.open()
    Path(f"/run/systemd/system/{NAME}.service").unlink(missing_ok=True)
    systemctl("daemon-reload")
    with pytest.raises(Dsv41Error, match=r"not found.*Run nixos-rebuild switch on this node") as caught:
        await units.start(NAME)
    assert caught.value.exit_status is Exit.REFUSED
    assert (await units.status(NAME)).state is UnitState.INACTIVE


async def test_a_masked_unit_is_named(bench: SystemdBench) -> None:
    path = Path(f"/run/systemd/system/{NAME}.service")
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/null")
    systemctl("daemon-reload")
    try:
        units = await bench.open()
        with pytest.raises(Dsv41Error, match="masked"):
            await units.start(NAME)
    finally:
        path.unlink()


async def test_a_program_that_does_not_exist_is_told_as_systemds_status_203(bench: SystemdBench) -> None:
    bench.write_unit("[Service]\nExecStart=/nonexistent/dsv41 rank 0\n")
    queue: asyncio.Queue[UnitStatus] = asyncio.Queue()
    units = await bench.open(queue.put_nowait)
    await units.start(NAME)
    assert (await ended(queue)).exit_status == 203


async def test_a_mount_that_fails_is_said_when_the_unit_is_started(bench: SystemdBench) -> None:
    write_unit("dsv41-needed.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
    bench.write_unit(NEEDING)
    units = await bench.open()
    with pytest.raises(Dsv41Error, match=f"{NAME} was not started; systemd says: dependency.*list-dependencies"):
        await units.start(NAME)


async def test_a_unit_that_waits_for_a_slow_mount_counts_as_active_and_its_failure_is_told(bench: SystemdBench) -> None:
    Path("/run/dsv41-mounted").unlink(missing_ok=True)
    wait = "while ! test -e /run/dsv41-mounted; do sleep 0.05; done; exit 1"
    write_unit("dsv41-needed.service", f"[Service]\nType=oneshot\nExecStart=/bin/sh -c '{wait}'\n")
    bench.write_unit(NEEDING)
    queue: asyncio.Queue[UnitStatus] = asyncio.Queue()
    units = await bench.open(queue.put_nowait)
    await units.start(NAME)
    assert (await units.status(NAME)).state is UnitState.ACTIVE
    assert queue.empty()
    Path("/run/dsv41-mounted").touch()
    status = await ended(queue)
    assert (status.state, status.exit_status) == (UnitState.FAILED, None)


async def test_a_unit_that_has_not_said_ready_is_active_and_can_be_stopped(bench: SystemdBench) -> None:
    bench.write_unit(NOTIFYING)
    units = await bench.open()
    await units.start(NAME)
    await line(units, "loading")
    status = await units.status(NAME)
    assert (status.state, status.active_since_s) == (UnitState.ACTIVE, None)
    Path("/run/dsv41-ready").touch()
    await until_state(units, lambda s: s.active_since_s is not None, "ready")
    Path("/run/dsv41-ready").unlink()
    assert (await units.stop(NAME, 10)).members == ()
    await units.start(NAME)
    assert (await units.stop(NAME, 10)).members == ()


async def test_a_unit_started_by_a_person_is_seen_without_asking(bench: SystemdBench) -> None:
    await bench.define(SLEEPER)
    queue: asyncio.Queue[UnitStatus] = asyncio.Queue()
    units = await bench.open(queue.put_nowait)
    systemctl("start", NAME)
    assert (await units.status(NAME)).state is UnitState.ACTIVE
    systemctl("stop", NAME)
    status = await ended(queue)
    assert status.exit_status == -signal.SIGTERM


async def test_the_end_of_a_unit_is_told_although_the_bus_was_restarted(bench: SystemdBench) -> None:
    queue: asyncio.Queue[UnitStatus] = asyncio.Queue()
    units = await bench.run(SLEEPER, queue.put_nowait)
    pid = (await units.status(NAME)).main_pid
    assert pid is not None
    await asyncio.to_thread(systemctl, "restart", "dbus.service")
    os.kill(pid, signal.SIGKILL)
    assert (await ended(queue)).exit_status == -signal.SIGKILL


async def test_a_call_while_the_bus_is_away_is_refused_in_words_and_works_again_later(bench: SystemdBench) -> None:
    await bench.define(SLEEPER)
    units = await bench.open()
    await asyncio.to_thread(systemctl, "stop", "dbus.socket", "dbus.service")
    with pytest.raises(Dsv41Error, match="the system bus cannot be used: .*systemctl status dbus") as caught:
        await units.status(NAME)
    assert caught.value.exit_status is Exit.UNAVAILABLE
    await asyncio.to_thread(systemctl, "start", "dbus.service")
    deadline = time.monotonic() + 30
    while True:
        try:
            await units.start(NAME)
            break
        except Dsv41Error:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
    assert (await units.status(NAME)).state is UnitState.ACTIVE


async def test_the_end_of_a_unit_is_told_although_systemd_executed_itself_anew(bench: SystemdBench) -> None:
    queue: asyncio.Queue[UnitStatus] = asyncio.Queue()
    units = await bench.run(SLEEPER, queue.put_nowait)
    pid = (await units.status(NAME)).main_pid
    assert pid is not None
    await asyncio.to_thread(systemctl, "daemon-reexec")
    assert (await units.status(NAME)).main_pid == pid
    os.kill(pid, signal.SIGKILL)
    assert (await ended(queue)).exit_status == -signal.SIGKILL


async def test_a_machine_without_a_bus_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/bus")
    with pytest.raises(Dsv41Error, match="No such file or directory.*supervisor.units to process"):
        await SystemdUnits([NAME]).open()


async def test_a_machine_that_is_not_going_down_says_so(bench: SystemdBench) -> None:
    units = await bench.open()
    assert await units.going_down() is False


def test_a_user_without_the_rule_is_refused_with_the_rule_named(bench: SystemdBench) -> None:
    asyncio.run(bench.define(SLEEPER))
    done = subprocess.run(["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", sys.executable, "-c", ASK,
                           NAME], capture_output=True, text=True)  # fmt: skip
    assert f"{NAME} refused: rank: {NAME} may not be started by this user" in done.stdout, done.stdout + done.stderr
    assert "polkit" in done.stdout
