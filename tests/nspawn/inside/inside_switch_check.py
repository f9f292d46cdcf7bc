"""modules/switch_check.py against the real systemd: what runs decides. Runs inside a machine of `machine.py`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[3] / "modules/switch_check.py"
UNIT = "[Service]\nType=exec\nExecStart=sleep 600\nEnvironment={}\n"


@pytest.fixture
def systems(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Systems with a rank unit each, and rank 7 of the first, running."""
    made = {}
    for name, text in (("now", UNIT.format("A=1")), ("same", UNIT.format("A=1")), ("other", UNIT.format("A=2"))):
        made[name] = tmp_path / name
        (made[name] / "etc/systemd/system").mkdir(parents=True)
        (made[name] / "etc/systemd/system/dsv41-rank@.service").write_text(text)
    made["without"] = tmp_path / "without"
    Path("/run/systemd/system/dsv41-rank@.service").write_text(UNIT.format("A=1"))
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    subprocess.run(["systemctl", "start", "dsv41-rank@7"], check=True)
    yield made
    subprocess.run(["systemctl", "stop", "dsv41-rank@7"], check=True)
    Path("/run/systemd/system/dsv41-rank@.service").unlink()
    subprocess.run(["systemctl", "daemon-reload"], check=True)


def check(systems: dict[str, Path], incoming: str, *action: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CHECK), "--node", "spark8", "--rank", "7", "--head", "spark1",
         "--current", str(systems["now"]), str(systems[incoming]), *action],
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("action", ["switch", "test"])
def test_a_switch_that_changes_a_running_rank_is_refused_with_the_drain_to_run(
    systems: dict[str, Path], action: str
) -> None:
    done = check(systems, "other", action)
    assert done.returncode == 1
    assert "spark8 rank 7, config: dsv41-rank@7 is running, and this switch changes" in done.stderr
    assert "(Environment)" in done.stderr
    assert "dsv41 drain                        # on spark1" in done.stderr
    assert f"nixos-rebuild {action} " in done.stderr


def test_a_switch_that_takes_the_rank_away_is_refused(systems: dict[str, Path]) -> None:
    assert check(systems, "without").returncode == 1


def test_a_switch_that_leaves_the_rank_as_it_is_goes_on(systems: dict[str, Path]) -> None:
    done = check(systems, "same", "switch")
    assert (done.returncode, done.stderr) == (0, "")


def test_what_waits_for_the_next_boot_goes_on(systems: dict[str, Path]) -> None:
    assert check(systems, "other", "boot").returncode == 0


def test_any_switch_goes_on_while_no_rank_runs(systems: dict[str, Path]) -> None:
    subprocess.run(["systemctl", "stop", "dsv41-rank@7"], check=True)
    assert check(systems, "other", "switch").returncode == 0
