"""An adapter that is asked for and cannot be in place ends the process with 78, in every process and with a reason."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.engines import BOOT, engine_environment, free_port, launch_rank, read_reports, write_plan

INSIDE = Path(__file__).parent / "inside"
ROLES = ("launcher", "scheduler", "detokenizer")


@pytest.fixture(scope="module")
def sglang_package(engine_python: Path) -> Path:
    code = "import importlib.util; print(importlib.util.find_spec('sglang').submodule_search_locations[0])"
    return Path(
        subprocess.run([engine_python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    )


@pytest.fixture
def sabotage(sglang_package: Path, tmp_path: Path) -> Callable[[str, str, str], Path]:
    """An engine in which one file reads differently: links to the real one, and one changed copy."""

    def change(file: str, old: str, new: str) -> Path:
        copy = tmp_path / "sabotaged" / "sglang"
        subprocess.run(["cp", "-rs", str(sglang_package), str(copy)], check=True)
        source = (copy / file).read_text()
        assert source.count(old) == 1, f"{file} holds {source.count(old)} times {old!r}"
        (copy / file).unlink()
        (copy / file).write_text(source.replace(old, new))
        return copy.parent

    (tmp_path / "sabotaged").mkdir()
    return change


def enter(
    python: Path, plan: Path, *roles: str, first: Path | None = None
) -> dict[str, subprocess.CompletedProcess]:
    """Enter each role's process, all at once."""
    environment = engine_environment() | {"DSV41_RANK_PLAN": str(plan)}
    if first is not None:
        environment["PYTHONPATH"] = f"{first}:{environment['PYTHONPATH']}"
    started = {
        role: subprocess.Popen(
            [python, INSIDE / "entry.py", role],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for role in roles
    }
    done = {}
    for role, process in started.items():
        out, err = process.communicate(timeout=200)
        done[role] = subprocess.CompletedProcess(role, process.returncode, out.decode(), err.decode())
    return done


@pytest.fixture
def plan(packed: Callable[[int, str], Path], demo_revision: str, tmp_path: Path) -> Path:
    return write_plan(tmp_path / "rank-0", rows=packed(1, "balanced"), revision=demo_revision)


def test_a_changed_target_is_refused_by_every_process(
    engine_python: Path, plan: Path, sabotage: Callable[[str, str, str], Path]
) -> None:
    changed = sabotage(
        "srt/layers/engram.py", "local = indices - self.row_start", "local = indices - self.row_start + 0"
    )
    done = enter(engine_python, plan, *ROLES, first=changed)
    assert {role: process.returncode for role, process in done.items()} == dict.fromkeys(ROLES, 78)
    assert not any("carried on" in process.stdout for process in done.values())
    reports = {report.role: report.adapters["engram_nvme"] for report in read_reports(plan.parent, BOOT)}
    assert set(reports) >= set(ROLES)
    for role in ROLES:
        assert reports[role].state == "refused"
        assert "sglang.srt.layers.engram:EngramEmbedding is " in str(reports[role].reason)
        assert "known are 728ce59fd5b331fb (0.5.23)" in str(reports[role].reason)


def test_a_registry_that_applies_nothing_is_refused(
    engine_python: Path, plan: Path, sabotage: Callable[[str, str, str], Path]
) -> None:
    """SGLang logs a failing hook and carries on; here every hook fails."""
    changed = sabotage("srt/plugins/hook_registry.py", "                cls._apply_target(target, hooks)\n",
                       "                raise RuntimeError('no hooks today')\n")  # fmt: skip
    done = enter(engine_python, plan, "scheduler", first=changed)["scheduler"]
    assert done.returncode == 78, done.stderr[-2000:]
    (report,) = read_reports(plan.parent, BOOT)
    assert (report.role, report.adapters["engram_nvme"].state) == ("scheduler", "refused")
    assert "EngramEmbedding was hooked, but is not ours when read back." in str(
        report.adapters["engram_nvme"].reason
    )


def test_rows_for_another_world_size_end_the_whole_rank_with_78(
    engine_python: Path,
    pruned_checkpoint: Path,
    packed: Callable[[int, str], Path],
    demo_revision: str,
    tmp_path: Path,
) -> None:
    """Found only when the scheduler builds the model; the launcher must not end with a status that is restarted."""
    rows = tmp_path / "rows"
    rows.mkdir()
    for layer in (1, 14):
        (rows / f"engram-l{layer}-r0of1.bin").symlink_to(packed(3, "balanced") / f"engram-l{layer}-r0of3.bin")
    directory = tmp_path / "rank-0"
    plan = write_plan(directory, rows=rows, revision=demo_revision)
    rank = launch_rank(
        engine_python, pruned_checkpoint, directory, rank=0, world_size=1, rendezvous=free_port(), plan=plan
    )
    try:
        status = rank.process.wait(timeout=180)
    finally:
        _end(rank.process.pid)
    assert status == 78, rank.tail()
    refused = [r for r in read_reports(directory, BOOT) if r.adapters["engram_nvme"].state == "refused"]
    assert [report.role for report in refused] == ["scheduler"]
    reason = str(refused[0].adapters["engram_nvme"].reason)
    assert "engram-l1-r0of1.bin is for world size 3, this model has 1; run dsv41 pack on spark1." in reason


def _end(group: int) -> None:
    import signal

    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)


def test_the_engines_own_variables_for_tables_are_a_conflict(
    engine_python: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = engine_environment() | {
        "DSV41_RANK_PLAN": str(plan),
        "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE": "1",
    }
    done = subprocess.run(
        [engine_python, INSIDE / "entry.py", "scheduler"], env=environment, capture_output=True, timeout=200
    )
    assert done.returncode == 78, done.stderr[-2000:]
    report = json.loads(next(plan.parent.glob("armed-scheduler-*.json")).read_text())
    assert report["adapters"]["engram_nvme"]["reason"] == (
        "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE also say where the tables live; unset them."
    )
