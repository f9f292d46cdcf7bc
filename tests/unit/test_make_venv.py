"""`make` on a machine that lacks something: one sentence each, exit 69, nothing half-built that is trusted later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def _run(root: Path, path: str) -> subprocess.CompletedProcess[str]:
    script = root / "tools" / "make_venv.py"
    return subprocess.run([sys.executable, str(script)], env={"PATH": path}, capture_output=True, text=True, timeout=60)


def _copy_of_the_tool(repo_root: Path, tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "make_venv.py").write_text((repo_root / "tools" / "make_venv.py").read_text())
    for name in ("supervisor", "adapters"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text("")
    (tmp_path / "rowstore").mkdir()
    return tmp_path


def test_a_missing_compiler_is_named_and_nothing_is_made(repo_root: Path, tmp_path: Path) -> None:
    root = _copy_of_the_tool(repo_root, tmp_path)
    empty = tmp_path / "bin"
    empty.mkdir()
    done = _run(root, str(empty))
    assert done.returncode == 69
    assert done.stderr.splitlines()[0] == ("make: there is no C compiler. Install one: apt-get install gcc libc6-dev")
    assert not (root / ".venv").exists()


def test_an_environment_whose_stamp_is_missing_is_not_up_to_date(repo_root: Path, tmp_path: Path) -> None:
    root = _copy_of_the_tool(repo_root, tmp_path)
    (root / ".venv" / "bin").mkdir(parents=True)
    empty = tmp_path / "bin"
    empty.mkdir()
    assert _run(root, str(empty)).returncode == 69
