"""Building: what a machine without a compiler is told, and that a wheel is the same bytes wherever it is built."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rowstore import aarch64

SOURCE = Path(__file__).parents[2] / "rowstore"


def copy_source(to: Path) -> Path:
    shutil.copytree(
        SOURCE, to, ignore=shutil.ignore_patterns("build", "*.egg-info", "*.so", "*.c", "__pycache__")
    )
    return to


def needs(*modules: str) -> None:
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is a build requirement")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"CC": "/nowhere/gcc"}, "the C compiler `/nowhere/gcc` was not found. Install gcc"),
        ({"NO_HEADERS": "1"}, "were not found. Install them (Debian and Ubuntu: apt install python3-dev)"),
    ],
)
def test_a_machine_that_cannot_compile_is_told_in_one_sentence(tmp_path, change, sentence):
    needs("Cython", "setuptools")
    source = copy_source(tmp_path / "source")
    code = "import sys, runpy; sys.argv = ['setup.py', 'build_ext']\n"
    if "NO_HEADERS" in change:
        code += "import sysconfig; sysconfig.get_path = lambda *a, **k: '/nowhere/include'\n"
    code += "runpy.run_path('setup.py', run_name='__main__')"
    for pyx in (source / "dsv41_rowstore").glob("*.pyx"):
        if pyx.stem != "rowbytes":
            pyx.unlink()  # one is enough to ask for a compiler
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=source,
        capture_output=True,
        text=True,
        env={**os.environ, **change},
        timeout=240,
    )
    assert done.returncode != 0
    assert sentence in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_wheel_built_twice_is_the_same_bytes(tmp_path):
    """Other directory, time zone, locale, hash seed, file times. Umask is part of the recipe: zip keeps mode bits."""
    needs("Cython", "setuptools", "build")
    digests = []
    for name, zone, locale, seed in (("a", "UTC", "C", "0"), ("b" * 60, "Asia/Tokyo", "C.UTF-8", "99")):
        source = copy_source(tmp_path / name)
        for i, file in enumerate(source.rglob("*")):
            os.utime(file, (1_500_000_000 + 1000 * i, 1_500_000_000 + 777 * i))
        env = {
            **os.environ, "TZ": zone, "LC_ALL": locale, "PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": "1700000000",
            "CFLAGS": f"-ffile-prefix-map={source}=.", "LDFLAGS": "-Wl,--build-id=sha1",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "build", "-n", "-w", "-o", str(tmp_path / f"out-{name[0]}"), str(source)],
            env=env, capture_output=True, text=True, umask=0o022,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        (wheel,) = (tmp_path / f"out-{name[0]}").glob("*.whl")
        digests.append((wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest()))
    print(digests)
    assert digests[0] == digests[1]


def test_every_test_that_the_failure_table_names_is_there():
    here = Path(__file__).parent
    named = set(re.findall(r"`(test_\w+)`", (here / "README.md").read_text()))
    there = {name for file in here.glob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert len(named) > 20 and named <= there, named - there


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_row_store_passes_its_tests_on_aarch64():
    """Cross-compiled wheel, Debian's arm64 Python, qemu-user, where io_uring and AIO are refused: aarch64.py."""
    if why := aarch64.missing():
        pytest.skip(why)
    done = subprocess.run([sys.executable, aarch64.__file__, "-q"], capture_output=True, text=True)
    if "apt-get" in done.stdout + done.stderr and "failed; see above" in done.stderr:
        pytest.skip("Debian's arm64 packages cannot be fetched here")
    print(done.stdout[-500:])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]


@pytest.mark.parametrize(
    ("compiler", "runner"),
    [("cc", []), pytest.param("aarch64-linux-gnu-gcc", ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"], id="aarch64")],
)
@pytest.mark.parametrize("optimise", ["-O0", "-O3"])
def test_what_differs_by_processor_agrees_with_plain_c(tmp_path, compiler, runner, optimise):
    """On aarch64 under qemu where it is installed: the NEON compare and the crc instructions run nowhere else here."""
    if any(shutil.which(tool) is None for tool in [compiler, *runner[:1]]):
        pytest.skip(f"needs {compiler} {' '.join(runner[:1])}")
    program = tmp_path / "check"
    source = Path(__file__).parent / "portable_check.c"
    flags = ["-std=gnu11", "-Wall", "-Wno-unused-function", optimise, f"-I{SOURCE / 'dsv41_rowstore'}"]
    subprocess.run([compiler, *flags, "-o", program, source], check=True)
    done = subprocess.run([*runner, program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("ok"), done.stdout
