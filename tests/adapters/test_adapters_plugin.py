"""The plugin's way out, without an engine: whatever goes wrong, status 78 and a written reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from dsv41_adapters.registry import discover

ACTIVATE = "from dsv41_adapters.plugin import activate; activate(); print('carried on')"


def activate(plan: Path | None, code: str = ACTIVATE, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as SGLang calls it: inside `except Exception`."""
    wrapped = f"try:\n    {code}\nexcept Exception as error:\n    print('swallowed', error)\n"
    env = {**os.environ, **environment}
    env.pop("DSV41_RANK_PLAN", None)
    if plan is not None:
        env["DSV41_RANK_PLAN"] = str(plan)
    return subprocess.run([sys.executable, "-c", wrapped], env=env, capture_output=True, text=True, timeout=60)


def only_report(plan: Path) -> dict[str, object]:
    (path,) = plan.parent.glob("armed-*.json")
    return json.loads(path.read_text())


def test_without_a_plan_nothing_is_done() -> None:
    done = activate(None)
    assert (done.returncode, done.stdout, done.stderr) == (0, "carried on\n", "")


def test_an_unknown_adapter_is_refused_and_reported(plan: Callable[..., Path]) -> None:
    path = plan(adapters={"engram_nvm": {}})
    there = ", ".join(sorted(discover()))
    done = activate(path)
    assert (done.returncode, done.stdout) == (78, "")
    assert f"adapter engram_nvm refused: there is no such adapter; there are {there}." in done.stderr
    report = only_report(path)
    assert (report["role"], report["rank"], report["boot"]) == ("launcher", 0, "20261129T221500-4f1c9a2e")
    assert report["adapters"] == {
        "engram_nvm": {
            "state": "refused",
            "reason": f"there is no such adapter; there are {there}.",
            "targets": [],
        }
    }


def test_an_engine_that_is_not_there_is_a_refusal(plan: Callable[..., Path]) -> None:
    path = plan()
    done = activate(path)
    assert (done.returncode, done.stdout) == (78, "")
    assert "sglang is not importable here" in str(only_report(path)["adapters"]["engram_nvme"]["reason"])


def test_bad_settings_are_a_refusal(plan: Callable[..., Path]) -> None:
    path = plan(adapters={"engram_nvme": {"lookup_timeout_s": -1}})
    assert activate(path).returncode == 78
    assert "lookup_timeout_s" in str(only_report(path)["adapters"]["engram_nvme"]["reason"])


def test_nothing_asked_for_is_reported_as_nothing(plan: Callable[..., Path]) -> None:
    path = plan(adapters={})
    assert activate(path).stdout == "carried on\n"
    assert only_report(path)["adapters"] == {}


def test_a_plan_that_is_not_there_is_a_refusal(tmp_path: Path) -> None:
    done = activate(tmp_path / "none.json")
    assert (done.returncode, done.stdout) == (78, "")
    assert "cannot be read (No such file or directory). Start the rank with `dsv41 rank`." in done.stderr


def test_a_plan_with_a_rank_that_is_no_number_names_the_plan(plan: Callable[..., Path]) -> None:
    path = plan(rank=float("inf"))
    assert activate(path).returncode == 78
    assert f"{path}, which is not a rank plan" in str(only_report(path)["adapters"]["engram_nvme"]["reason"])


def test_a_plan_of_another_format_is_a_refusal_with_a_report(plan: Callable[..., Path]) -> None:
    path = plan(format=2)
    done = activate(path)
    assert (done.returncode, done.stdout) == (78, "")
    assert only_report(path)["adapters"]["engram_nvme"]["state"] == "refused"


def test_a_report_directory_that_cannot_be_written_is_a_refusal(plan: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = activate(plan(adapters={}, report_dir=str(tmp_path / "file")))
    assert (done.returncode, done.stdout) == (78, "")
    assert "no report could be written" in done.stderr


def test_a_plugin_that_cannot_be_imported_is_a_refusal(plan: Callable[..., Path], tmp_path: Path) -> None:
    """Whatever the environment lacks: here pydantic."""
    (tmp_path / "broken" / "pydantic").mkdir(parents=True)
    (tmp_path / "broken" / "pydantic" / "__init__.py").write_text("raise ImportError('half installed')\n")
    path = plan()
    before = os.environ.get("PYTHONPATH", "")
    done = activate(path, PYTHONPATH=f"{tmp_path / 'broken'}:{before}")
    assert (done.returncode, done.stdout) == (78, "")
    report = only_report(path)
    assert report["adapters"]["engram_nvme"] == {
        "state": "refused",
        "reason": "ImportError: half installed",
        "targets": [],
    }


def test_the_launcher_ends_with_78_when_a_process_below_it_refused(plan: Callable[..., Path]) -> None:
    """SGLang would end it with 1, which is restarted for ever."""
    path = plan(adapters={})
    report = {"format": 1, "boot": "20261129T221500-4f1c9a2e", "pid": 1, "role": "scheduler", "rank": 0,
              "adapters": {"engram_nvme": {"state": "refused", "reason": "x", "targets": []}}}  # fmt: skip
    (path.parent / "armed-scheduler-1.json").write_text(json.dumps(report))
    assert activate(path, ACTIVATE + "; import sys; sys.exit(1)").returncode == 78
