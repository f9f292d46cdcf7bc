"""What the supervisor may rely on, whichever backend starts its units. tests/nspawn runs these against systemd."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from bench import NAME, Bench, line, until, until_state
from dsv41_supervisor.errors import Dsv41Error
from dsv41_supervisor.units import UnitState, UnitStatus
from dsv41_supervisor.units.procfs import read, start_time

SLEEPER = "import time; print('started', flush=True); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(600)"
FAMILY = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True)
print("child", child.pid)
time.sleep(600)
"""
ORPHANING = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}])
print("child", child.pid)
sys.exit(3)
"""
LISTENER = """
import socket, time
sock = socket.create_server(("127.0.0.1", 0))
print("port", sock.getsockname()[1])
time.sleep(600)
"""
POLITE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("goodbye"), sys.exit(0)))
print("polite")
time.sleep(600)
"""
PACKING = """
import os, sys, time
print("packing")
while not os.path.exists({packed!r}):
    time.sleep(0.02)
sys.exit({exit_status})
"""


def gone(pid: int) -> bool:
    return (found := read(pid)) is None or found.dead


async def ended(queue: asyncio.Queue[UnitStatus]) -> UnitStatus:
    return await asyncio.wait_for(queue.get(), 30)


async def test_a_started_unit_is_active_with_its_main_process_and_names_its_run(bench: Bench) -> None:
    began = time.monotonic()
    units = await bench.run(SLEEPER)
    status = await units.status(NAME)
    assert (status.state, status.exit_status) == (UnitState.ACTIVE, None)
    assert status.main_pid is not None and status.members == (status.main_pid,)
    assert status.invocation
    assert status.active_since_s is not None and began - 1 <= status.active_since_s <= time.monotonic() + 1


async def test_a_unit_that_was_never_started_is_inactive_and_stopping_it_is_safe(bench: Bench) -> None:
    await bench.define(SLEEPER)
    units = await bench.open()
    status = await units.status(NAME)
    assert (status.state, status.main_pid, status.members) == (UnitState.INACTIVE, None, ())
    assert (await units.stop(NAME, 1)).state is UnitState.INACTIVE


async def test_starting_twice_starts_once_and_stopping_twice_is_safe(bench: Bench) -> None:
    units = await bench.run(SLEEPER)
    first = await units.status(NAME)
    await units.start(NAME)
    again = await units.status(NAME)
    assert (again.main_pid, again.invocation) == (first.main_pid, first.invocation)
    await line(units, "started")
    assert (await units.stop(NAME, 20)).members == ()
    assert (await units.stop(NAME, 20)).state is UnitState.INACTIVE
    assert first.main_pid is not None and gone(first.main_pid)


async def test_two_starts_at_once_start_once(bench: Bench) -> None:
    await bench.define(SLEEPER)
    units = await bench.open()
    await units.start(NAME)
    await asyncio.gather(units.start(NAME), units.start(NAME))
    assert len((await units.status(NAME)).members) == 1


async def test_a_unit_stopped_and_started_again_is_another_run(bench: Bench) -> None:
    units = await bench.run(SLEEPER)
    first = (await units.status(NAME)).invocation
    await units.stop(NAME, 20)
    await units.start(NAME)
    status = await units.status(NAME)
    assert status.state is UnitState.ACTIVE
    assert status.invocation != first


async def test_a_polite_unit_ends_by_itself_with_its_last_words(bench: Bench) -> None:
    queue: asyncio.Queue[UnitStatus] = asyncio.Queue()
    units = await bench.run(POLITE, queue.put_nowait)
    await line(units, "polite")
    assert (await units.stop(NAME, 20)).state is UnitState.INACTIVE
    assert await line(units, "goodbye")
    assert (await ended(queue)).exit_status == 0


async def test_a_unit_that_ignores_sigterm_is_stopped_by_force_and_did_not_fail(bench: Bench) -> None:
    units = await bench.run(STUBBORN)
    await line(units, "deaf")
    status = await units.stop(NAME, 0.3)
    assert (status.state, status.members) == (UnitState.INACTIVE, ())


async def test_a_unit_stopped_without_patience_is_killed_at_once(bench: Bench) -> None:
    units = await bench.run(STUBBORN)
    await line(units, "deaf")
    pid = (await units.status(NAME)).main_pid
    assert (await units.stop(NAME, 0)).members == ()
    assert pid is not None and gone(pid)


async def test_a_child_in_a_session_of_its_own_is_seen_and_stopped_too(bench: Bench) -> None:
    units = await bench.run(FAMILY)
    child = int((await line(units, "child")).split()[1])
    assert child in (await units.status(NAME)).members
    assert (await units.stop(NAME, 5)).members == ()
    await until(lambda: gone(child), "the child's end")


async def test_the_port_of_a_stopped_unit_is_free(bench: Bench) -> None:
    units = await bench.run(LISTENER)
    port = int((await line(units, "port")).split()[1])
    await units.stop(NAME, 5)
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", port)
    server.close()


async def test_what_outlives_a_failed_main_process_is_killed_and_the_failure_is_told(bench: Bench) -> None:
    queue: asyncio.Queue[UnitStatus] = asyncio.Queue()
    units = await bench.run(ORPHANING, queue.put_nowait)
    status = await ended(queue)
    assert (status.name, status.exit_status) == (NAME, 3)
    await until_state(units, lambda s: s.state is UnitState.FAILED and not s.members, "a failed unit without processes")
    assert gone(int((await line(units, "child")).split()[1]))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_killed_main_process_is_told_with_its_signal(bench: Bench, number: signal.Signals) -> None:
    queue: asyncio.Queue[UnitStatus] = asyncio.Queue()
    units = await bench.run(SLEEPER, queue.put_nowait)
    pid = (await units.status(NAME)).main_pid
    assert pid is not None
    os.kill(pid, number)
    status = await ended(queue)
    assert status.exit_status == -number
    assert (await until_state(units, lambda s: not s.members, "the end")).state is UnitState.FAILED


async def test_a_unit_that_ends_well_is_inactive_and_told_once(bench: Bench) -> None:
    queue: asyncio.Queue[UnitStatus] = asyncio.Queue()
    units = await bench.run("print('done')", queue.put_nowait)
    status = await ended(queue)
    assert status.exit_status == 0
    assert (await until_state(units, lambda s: s.main_pid is None, "the end")).state is UnitState.INACTIVE
    await units.status(NAME)
    assert queue.empty()


@pytest.mark.parametrize(("exit_status", "state"), [(0, UnitState.INACTIVE), (69, UnitState.FAILED)])
async def test_a_oneshot_is_active_until_it_ends(bench: Bench, exit_status: int, state: UnitState) -> None:
    packed = bench.program.with_name("packed")
    units = await bench.run(PACKING.format(packed=str(packed), exit_status=exit_status), oneshot=True)
    assert (await units.status(NAME)).state is UnitState.ACTIVE
    packed.touch()
    status = await until_state(units, lambda s: s.state is not UnitState.ACTIVE and s.main_pid is None, "its end")
    assert (status.state, status.exit_status) == (state, exit_status)
    assert (await line(units, "packing")) == "packing"


async def test_a_restarted_supervisor_takes_a_running_unit_over(bench: Bench) -> None:
    before = await bench.run(SLEEPER)
    was = await before.status(NAME)
    await before.close(stop_all=False)
    queue: asyncio.Queue[UnitStatus] = asyncio.Queue()
    after = await bench.open(queue.put_nowait)
    now = await after.status(NAME)
    assert (now.main_pid, now.invocation, now.state) == (was.main_pid, was.invocation, UnitState.ACTIVE)
    await after.start(NAME)
    assert (await after.status(NAME)).main_pid == was.main_pid
    assert now.main_pid is not None
    os.kill(now.main_pid, signal.SIGKILL)
    assert (await ended(queue)).name == NAME
    assert start_time(now.main_pid) is None


async def test_a_unit_that_ended_while_nobody_watched_is_not_told_as_news(bench: Bench) -> None:
    before = await bench.run(SLEEPER)
    pid = (await before.status(NAME)).main_pid
    await before.close(stop_all=False)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: gone(pid), "the unit's end")
    queue: asyncio.Queue[UnitStatus] = asyncio.Queue()
    after = await bench.open(queue.put_nowait)
    assert (await after.status(NAME)).main_pid is None
    assert queue.empty()


async def test_the_last_lines_are_the_last_and_no_more_than_asked(bench: Bench) -> None:
    units = await bench.run("import time\nfor i in range(30): print('line', i)\nprint('bytes \\udcff')\ntime.sleep(600)"
                            .replace("print('bytes \\udcff')", "import sys; sys.stdout.flush(); "
                                     "sys.stdout.buffer.write(b'bytes \\xff\\n'); sys.stdout.flush()"))  # fmt: skip
    await line(units, "bytes")
    assert [text[:7] for text in await units.tail(NAME, 3)] == ["line 28", "line 29", "bytes �"]


async def test_a_unit_of_another_name_is_refused_by_name(bench: Bench) -> None:
    await bench.define(SLEEPER)
    units = await bench.open()
    with pytest.raises(Dsv41Error, match="dsv41-rank@7 is not a unit of this node"):
        await units.start("dsv41-rank@7")
