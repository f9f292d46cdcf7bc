"""An adapter that is asked for and cannot be in place ends the process with 78, everywhere, and says why."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from dsv41_adapters.fingerprint import EngineSource, fit
from dsv41_adapters.registry import discover
from dsv41_adapters.report import read_reports

from tests.engine.engines import BOOT, Engine, engine_environment, launch_rank, write_plan
from tests.harness.ports import free_port

ENTRY = Path(__file__).parent / "inside" / "entry.py"
ROLES = ("launcher", "scheduler", "detokenizer")
Packed = Callable[[int, str], Path]
Sabotage = Callable[[str, str, str], Path]


@pytest.fixture(scope="module")
def sglang_package(engine_python: Path) -> Path:
    code = "import importlib.util; print(importlib.util.find_spec('sglang').submodule_search_locations[0])"
    found = subprocess.run([engine_python, "-c", code], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


@pytest.fixture
def sabotage(sglang_package: Path, tmp_path: Path) -> Sabotage:
    """An engine in which one file reads differently: links to the real one, and one changed copy."""

    def change(file: str, old: str, new: str) -> Path:
        copy = tmp_path / "sabotaged" / "sglang"
        copy.parent.mkdir()
        subprocess.run(["cp", "-rs", str(sglang_package), str(copy)], check=True)
        source = (copy / file).read_text()
        assert source.count(old) == 1, f"{file} holds {source.count(old)} times {old!r}"
        (copy / file).unlink()
        (copy / file).write_text(source.replace(old, new))
        return copy.parent

    return change


@pytest.fixture
def plan(packed: Packed, demo_revision: str, tmp_path: Path) -> Path:
    return write_plan(tmp_path / "rank-0", rows=packed(1, "balanced"), revision=demo_revision)


def enter(python: Path, plan: Path, *roles: str, first: Path | None = None, **more: str) -> dict[str, int]:
    """Enter each role's process, all at once; gives their statuses. `first` goes before the real engine."""
    environment = engine_environment() | {"DSV41_RANK_PLAN": str(plan), **more}
    if first is not None:
        environment["PYTHONPATH"] = f"{first}:{environment['PYTHONPATH']}"
    started = {
        role: subprocess.Popen([python, ENTRY, role], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for role in roles
    }
    statuses = {}
    for role, process in started.items():
        out, _ = process.communicate(timeout=250)
        assert b"carried on" not in out
        assert process.returncode in (1, 78), out[-2000:]
        statuses[role] = process.returncode
    return statuses


def reasons(plan: Path) -> dict[str, str]:
    """Why engram_nvme is refused, by role."""
    reports = read_reports(plan.parent, BOOT)
    assert all(report.adapters["engram_nvme"].state == "refused" for report in reports)
    return {report.role.value: str(report.adapters["engram_nvme"].reason) for report in reports}


def test_every_adapter_fits_the_engine_it_is_tested_on(engine_python: Path) -> None:
    assert fit(discover().values(), EngineSource.at(engine_python.parents[1])) == []


def test_a_changed_target_is_refused_by_every_process(engine_python: Path, plan: Path, sabotage: Sabotage) -> None:
    changed = sabotage("srt/layers/engram.py", "owned = (local >= 0) &", "owned = (local >= 1) &")
    assert enter(engine_python, plan, *ROLES, first=changed) == dict.fromkeys(ROLES, 78)
    said = reasons(plan)
    assert set(said) == set(ROLES)
    for reason in said.values():
        assert reason.startswith("sglang.srt.layers.engram:EngramEmbedding is ")
        assert reason.endswith("known are 728ce59fd5b331fb (0.5.23).")


def test_a_hook_that_does_not_take_is_refused(engine_python: Path, plan: Path, sabotage: Sabotage) -> None:
    """SGLang logs a failing hook and carries on; here every hook fails."""
    changed = sabotage(
        "srt/plugins/hook_registry.py",
        "cls._apply_target(target, hooks)",
        "raise RuntimeError('no hooks today')",
    )
    assert enter(engine_python, plan, "scheduler", first=changed) == {"scheduler": 78}
    (said,) = reasons(plan).values()
    assert "sglang.srt.layers.engram:EngramEmbedding was hooked, but is not ours when read back." in said


def test_the_engines_own_variable_for_tables_is_a_conflict(engine_python: Path, plan: Path) -> None:
    variable = "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE"
    assert enter(engine_python, plan, "scheduler", **{variable: "1"}) == {"scheduler": 78}
    assert reasons(plan) == {"scheduler": f"{variable} says where the tables live, too. Unset it."}


def test_rows_for_another_world_size_end_the_whole_rank_with_78(
    engine_python: Path, pruned_checkpoint: Path, packed: Packed, demo_revision: str, tmp_path: Path
) -> None:
    """Found when the scheduler builds the model; SGLang's launcher would end with 1, which is restarted."""
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
        assert rank.process.wait(timeout=250) == 78, rank.tail()
    finally:
        Engine(1, [rank]).stop()
    said = {
        report.role.value: report.adapters["engram_nvme"].reason
        for report in read_reports(directory, BOOT)
        if report.adapters["engram_nvme"].state == "refused"
    }
    assert set(said) == {"scheduler"}
    assert "engram-l1-r0of1.bin is for world size 3, this model has 1; run dsv41 pack" in str(said["scheduler"])
