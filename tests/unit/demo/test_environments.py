"""The engine's environment with a tiny recipe: real venvs, real pip, packages of a few lines, no network."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from pathlib import Path

import pytest
from dsv41_supervisor.demo import environments
from dsv41_supervisor.demo.environments import LOG, MARK, Recipe, ensure_engine
from dsv41_supervisor.demo.progress import Progress
from dsv41_supervisor.errors import Dsv41Error, Exit, Refused

RECIPE = Recipe(
    requirements="demo/pins.txt",
    local=("local",),
    check="import tiny, ours",
    download_bytes=1e6,
    disk_bytes=1e6,
    n_files=100,
    what="none of it large",
)
# A build backend in the tree itself: nothing has to be downloaded to build with it.
BACKEND = """
import os, zipfile
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "ours-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as z:
        z.write("ours.py")
        z.writestr("ours-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: ours\\nVersion: 1.0\\n")
        wheel = "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        z.writestr("ours-1.0.dist-info/WHEEL", wheel)
        z.writestr("ours-1.0.dist-info/RECORD", "")
    return name
"""


def changed(**more: object) -> Recipe:
    return dataclasses.replace(RECIPE, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A checkout with one pinned requirement, one package of its own, and its environment; and what was said."""
    tmp_path = tmp_path_factory.mktemp("made")
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as z:
        z.writestr("tiny.py", "")
        z.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        z.writestr(
            "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        z.writestr("tiny-1.0.dist-info/RECORD", "")
    root = tmp_path / "root"
    (root / "demo").mkdir(parents=True)
    (root / "demo" / "pins.txt").write_text(f"{wheel}\n")
    (root / "local").mkdir()
    (root / "local" / "backend.py").write_text(textwrap.dedent(BACKEND))
    (root / "local" / "ours.py").write_text("VALUE = 1\n")
    (root / "local" / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    out = io.StringIO()
    assert ensure(root, out).created
    return root, out.getvalue()


@pytest.fixture
def root(made: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of it for one test: making a virtual environment takes seconds, copying one does not."""
    return shutil.copytree(made[0], tmp_path / "root", symlinks=True)


@pytest.fixture
def bare(root: Path) -> Path:
    """The same without an environment."""
    shutil.rmtree(root / ".venv-engine")
    return root


def ensure(root: Path, out: io.StringIO | None = None, recipe: Recipe = RECIPE) -> environments.EngineEnvironment:
    with Progress(out or io.StringIO(), live=False) as progress, progress.stage("environment"):
        return ensure_engine(root, sys.executable, progress, recipe)


def value_in(environment: environments.EngineEnvironment) -> str:
    return subprocess.run(
        [environment.python, "-c", "import ours; print(ours.VALUE)"], capture_output=True, text=True
    ).stdout


def test_it_says_first_what_it_will_download_and_is_made_once(made: tuple[Path, str], root: Path) -> None:
    assert made[1].startswith("engine environment: about 0 GB will be downloaded, none of it large;")
    again = ensure(root)
    assert not again.created and value_in(again) == "1\n"
    assert sorted(p.name for p in root.iterdir()) == [".venv-engine", "demo", "local"]
    assert sorted(p.name for p in (root / "local").iterdir()) == ["backend.py", "ours.py", "pyproject.toml"]
    assert not (root / ".venv-engine" / "dsv41-tmp").exists()


def test_own_packages_follow_their_sources_and_the_rest_stays(root: Path) -> None:
    def tiny() -> int:
        return next((root / ".venv-engine").glob("lib/*/site-packages/tiny.py")).stat().st_ino

    before, out = tiny(), io.StringIO()
    (root / "local" / "ours.py").write_text("VALUE = 2\n")
    environment = ensure(root, out)
    assert environment.created and value_in(environment) == "2\n"
    assert "local changed, installing them again" in out.getvalue()
    assert tiny() == before


def test_an_interrupted_environment_is_made_anew(root: Path) -> None:
    """Fault: the power went while the mark was written. The half-made environment is not used by the next start."""
    (root / ".venv-engine" / MARK).write_text('{"base": "torn')
    (root / ".venv-engine" / "half").write_text("")
    assert ensure(root).created
    assert not (root / ".venv-engine" / "half").exists()


def test_what_does_not_load_is_one_sentence_and_is_not_trusted_later(root: Path) -> None:
    (root / "local" / "ours.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(
        Dsv41Error, match="does not load: ModuleNotFoundError: .*nothing_of_this_name.*install.log"
    ) as e:
        ensure(root)
    assert e.value.exit_status is Exit.REFUSED
    assert "local" not in json.loads((root / ".venv-engine" / MARK).read_text())
    (root / "local" / "ours.py").write_text("VALUE = 3\n")
    assert value_in(ensure(root)) == "3\n"


def test_a_failed_install_is_one_sentence_with_the_log(root: Path) -> None:
    (root / "local" / "backend.py").write_text("raise SystemExit('the compiler found no sense in it')\n")
    with pytest.raises(Dsv41Error, match=r"pip could not install: .*\. See .*dsv41-install\.log\.$"):
        ensure(root)
    assert "the compiler found no sense in it" in (root / ".venv-engine" / LOG).read_text()
    assert "local" not in json.loads((root / ".venv-engine" / MARK).read_text())


@pytest.mark.parametrize(
    ("said", "sentence", "status"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "Free some space",
            69,
        ),
        ("ERROR: No matching distribution found for torch==2.14.1", "torch==2.14.1. Check the network, the proxy", 69),
        ("error: subprocess-exited-with-error\nERROR: Failed building wheel", "Failed building wheel. See /x/log.", 78),
    ],
)
def test_what_pip_said_becomes_a_reason_and_a_next_step(said: str, sentence: str, status: int) -> None:
    error = environments._failure("pip could not install", f"Collecting torch\n{said}\n", 1, Path("/x/log"))
    assert sentence in str(error) and error.exit_status == status


def test_a_directory_that_is_not_ours_is_left_alone(bare: Path) -> None:
    (bare / ".venv-engine").mkdir()
    (bare / ".venv-engine" / "precious").write_text("x")
    with pytest.raises(Dsv41Error, match="was not made by dsv41 .*left alone. Move it away"):
        ensure(bare)
    assert (bare / ".venv-engine" / "precious").read_text() == "x"


def test_everything_that_the_machine_lacks_is_said_together(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = bare
    monkeypatch.setenv("PATH", str(root))
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    facts = environments._Facts((3, 10, 4), "/usr/bin/python3.10", "/nowhere/include", False)
    monkeypatch.setattr(environments, "_facts_of", lambda python: facts)
    with pytest.raises(Refused) as caught:
        ensure(root, recipe=changed(disk_bytes=1e18))
    said = str(caught.value).splitlines()
    assert [line.partition(" ")[2] for line in said] == [
        "/usr/bin/python3.10 is Python 3.10.4, and the engine needs 3.11 or newer. "
        "Install python3.11 and make .venv with it.",
        "Python 3.10 cannot make virtual environments: its module ensurepip is missing. "
        "Install python3.10-venv (Debian, Ubuntu).",
        "the headers of Python 3.10 are missing: there is no /nowhere/include/Python.h. "
        "Install python3.10-dev (Debian, Ubuntu) or python3.10-devel (Fedora).",
        "there is no gcc, which builds the row store and what torch compiles as it starts. Install gcc.",
        "there is no no-such-compiler, which builds the row store and what torch compiles as it starts. "
        "Install g++ (Debian, Ubuntu) or gcc-c++ (Fedora).",
        said[5].partition(" ")[2],
    ]
    assert "GB free, and making the engine's environment takes 1000000000.0 GB. Free " in said[5]
    assert caught.value.exit_status is Exit.REFUSED
    assert not (root / ".venv-engine").exists()


def test_a_full_disk_alone_can_be_tried_again(bare: Path) -> None:
    with pytest.raises(Refused) as caught:
        ensure(bare, recipe=changed(disk_bytes=1e18))
    assert caught.value.exit_status is Exit.UNAVAILABLE


def test_leaving_the_stage_ends_pip_and_what_it_started(root: Path) -> None:
    """Fault: Ctrl-C while a package is built. Effect: within a second no process of it is left."""
    marker = root / "building"
    slow = f"import os, pathlib, time; pathlib.Path({str(marker)!r}).write_text(str(os.getpid())); time.sleep(600)\n"
    (root / "local" / "backend.py").write_text(slow)
    caught: list[BaseException] = []

    def work() -> None:
        try:
            ensure_engine(root, sys.executable, progress, RECIPE)
        except BaseException as error:
            caught.append(error)

    with Progress(io.StringIO(), live=False) as progress:
        with progress.stage("environment"):
            thread = threading.Thread(target=work)
            thread.start()
            deadline = time.monotonic() + 120
            while not (marker.exists() and marker.read_text()):
                assert time.monotonic() < deadline and not caught, caught
                time.sleep(0.05)
            # Another start meanwhile is refused, and waits for nothing.
            with pytest.raises(Dsv41Error, match="another process is making"):
                ensure_engine(root, sys.executable, progress, RECIPE)
        thread.join(60)
    assert not thread.is_alive() and "was stopped" in str(caught[0])
    pid = int(marker.read_text())
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split(") ")[1][:1]
    assert os.listdir(root / ".venv-engine")
