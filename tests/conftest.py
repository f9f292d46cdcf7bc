"""What every test may use: the checkout, and one demo checkpoint a session."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# An environment for a GPU's tests alone may lack it.
with contextlib.suppress(ImportError):
    from hypothesis import settings

    # The same examples every time, and no clock: by default an example that takes 200 ms on a busy machine is a
    # failure. `--hypothesis-profile=default` draws anew.
    settings.load_profile("ci")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long legs run when asked for by name: `-m slow`, or `-m "slow or not slow"` for all."""
    if "slow" in (config.option.markexpr or ""):
        return
    skip = pytest.mark.skip(reason="a long leg; ask with -m slow")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def demo_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's checkpoint, made once; tests that damage it copy it first."""
    target = tmp_path_factory.mktemp("checkpoint") / "demo"
    subprocess.run([sys.executable, str(ROOT / "demo" / "make_checkpoint.py"), str(target)], check=True)
    return target


@pytest.fixture(scope="session")
def demo_revision(demo_checkpoint: Path) -> str:
    return str(json.loads((demo_checkpoint / "dsv41-checkpoint.json").read_text())["revision"])


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """The Python of the clients' environment; their commands are beside it. Never skipped: only the clients of others
    show what is promised to them."""
    python = ROOT / ".venv-clients" / "bin" / "python"
    if not (python.parents[1] / "dsv41.stamp").exists():
        pytest.fail(f"{python} does not exist or is half made, so no client can be run. Run `make .venv-clients` once.")
    return python
