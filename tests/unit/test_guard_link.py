"""The supervisor's end of the guard: it starts one, hears it, finds it again, and refuses to go without."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.commands.together import together
from dsv41_supervisor.errors import Dsv41Error
from dsv41_supervisor.guard import link as link_module
from dsv41_supervisor.guard.link import GUARD_UNIT, GuardLink, guard_argv, kill_sentence
from dsv41_supervisor.settings import Settings, parse
from dsv41_supervisor.units.process import ProcessUnits, UnitDefinition
from dsv41_supervisor.units.procfs import start_time

from tests.harness.guard import MIB, FakeCgroup
from tests.unit.fleets import good


def made(tmp_path: Path, **guard: Any) -> Settings:
    document = good()
    # Longer than the 107 bytes of a socket's address.
    deep = tmp_path / "/".join(["a-directory-with-a-long-name"] * 4)
    document["supervisor"] = {"units": "process", "state_dir": str(deep / "state"), "run_dir": str(deep / "run")}
    document["guard"] = {"floor_bytes": 100 * MIB, "period_s": 0.1} | guard
    return parse(json.dumps(document))


@contextlib.asynccontextmanager
async def linked(settings: Settings, argv: list[str] | None = None) -> AsyncIterator[tuple[GuardLink, list[Any]]]:
    heard: list[Any] = []
    run_dir = settings.run_dir("spark1")
    units = ProcessUnits(
        lambda unit: UnitDefinition(argv or guard_argv(settings, "spark1"), {}, run_dir / "guard.log"), run_dir
    )
    link = GuardLink(settings, "spark1", units, heard.append)
    task = asyncio.create_task(link.run())
    try:
        yield link, heard
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await units.stop(GUARD_UNIT, 5)
        await units.close(stop_all=True)


async def until(condition: Callable[[], Any], what: str, timeout_s: float = 40) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


async def test_it_starts_a_guard_hears_samples_and_starts_another_when_it_dies(tmp_path: Path) -> None:
    async with linked(made(tmp_path)) as (link, heard):
        await link.require()
        await until(lambda: link.samples, "a sample")
        first = link.status()
        assert first["available_bytes"] > 0 and first["gpu_no_memory"] == 0
        subprocess.run(["kill", "-9", str(first["pid"])], check=True)
        await until(lambda: link.status()["pid"] != first["pid"] and link.connected, "another guard")
        assert [m["what"] for m in heard].count("hello") == 2


async def test_the_reason_is_known_before_the_death_is_seen(tmp_path: Path) -> None:
    cgroup = FakeCgroup(tmp_path / "cgroup", 900 * MIB)
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        async with linked(made(tmp_path, cgroup_dir=str(cgroup.directory))) as (link, heard):
            await link.require()
            link.watch("dsv41-rank@0.service", 0, "b1", rank.pid, start_time(rank.pid) or 0)
            await until(lambda: link.hello, "hello")
            assert link.heard_kill("b1") is None
            cgroup.leave(50 * MIB)
            # Nothing of the event loop runs here: only the death is waited for.
            assert rank.wait(30) == -9
            kill = link.heard_kill("b1")
            assert kill is not None and "below the floor of 0.10 GiB: killing rank 0" in kill_sentence(kill)
            assert link.heard_kill("another boot") is None
            await until(lambda: any(m["what"] == "killed-whom" for m in heard), "whom")
    finally:
        if rank.poll() is None:
            rank.kill()
            rank.wait(10)


async def test_no_rank_goes_without_a_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "CONNECT_S", 2.0)
    broken = [sys.executable, "-c", "print('the guard is broken'); raise SystemExit(70)"]
    async with linked(made(tmp_path), broken) as (link, _):
        with pytest.raises(Dsv41Error, match="the memory guard does not run: the guard is broken"):
            await link.require()


def test_status_says_what_is_wrong_and_that_all_is_the_same() -> None:
    guard = {"connected": True, "hardening": {"memory locked": "done"}, "killers": [], "gpu_no_memory": 0}
    kv = {"asked": 100, "granted": 100, "difference": 0, "available_bytes": 2**31}
    node = {"same": {"kernel": "6.17"}, "same_running": {"libnccl mapped": "x"}, "kv": kv, "memory": {"guard": guard}}
    assert together({"nodes": {"spark1": node, "spark2": node}, "desk": {}}) == [
        "same bits: 2 facts are equal on 2 nodes", "KV budget: 100 tokens granted (100 asked, +0, from 2.00 GiB)",
    ]  # fmt: skip
    killers = [{"name": "earlyoom", "pid": 7, "hint": "Stop it."}]
    ill = node | {"memory": {"guard": guard | {"connected": False, "gpu_no_memory": 3, "killers": killers,
                                               "hardening": {"memory locked": "Cannot allocate memory"}}}}  # fmt: skip
    said = together({"nodes": {"spark1": node, "spark2": ill}, "desk": {"last_incident": "i", "alert_failure": "f"}})
    assert said[2:] == [
        "spark2: the memory guard does not run. See why on spark2: systemctl status dsv41-guard.",
        "spark2: the GPU driver logged NV_ERR_NO_MEMORY 3 times. Lower engine.memory.mem_fraction_static, or stop what "
        "else holds memory there.",
        "spark2: earlyoom (pid 7) also kills for memory. Stop it.",
        "spark2: the memory guard may fall with the machine it guards: its memory is not locked (Cannot allocate "
        "memory). Give unit dsv41-guard LimitMEMLOCK=infinity and restart it. Without systemd, start the supervisor as "
        "root outside of any container.",
        "last incident: i (dsv41 incident show)", "f",
    ]  # fmt: skip
