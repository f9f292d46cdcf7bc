"""The whole row store on aarch64: cross-compile the wheel, run tests/rowstore under qemu-user.

    .venv/bin/python tests/rowstore/aarch64.py [pytest's arguments]

Needs the Debian packages qemu-user and gcc-aarch64-linux-gnu, .venv, and apt and pip for the arm64 packages of this
Python and its tests' tools (unpacked below build/aarch64, which is not in git: this machine's dpkg is not touched).

qemu-user knows neither io_uring nor kernel AIO (ENOSYS), so this is also the store where both are refused: it reads
with threads and says so, and the tests of the other engines say that they were skipped. How fast a Spark is, it cannot
say.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "aarch64"
TOOLS = ("qemu-aarch64", "aarch64-linux-gnu-gcc", "apt-get", "dpkg-deb")
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
PYTHON = [f"python{VERSION}-minimal", *(f"libpython{VERSION}-{part}" for part in ("minimal", "stdlib", "dev"))]
LIBRARIES = ("libc6", "libgcc-s1", "libexpat1", "zlib1g", "libffi8", "libbz2-1.0", "liblzma5", "libcrypt1", "libuuid1")


def missing() -> str | None:
    """Why this machine cannot do it, or None."""
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"needs {', '.join(lacking)}" if lacking else None


def run(*argv: object, **kwargs) -> None:
    if subprocess.run([str(a) for a in argv], **kwargs).returncode:
        sys.exit(f"aarch64: {' '.join(str(a) for a in argv[:3])} … failed; see above")


def sysroot() -> Path:
    """Debian's arm64 Python of this machine's version, unpacked."""
    root = WORK / f"root-{VERSION}"
    if (root / "complete").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    for folder in ("apt/lists/partial", "apt/archives/partial", "debs"):
        (WORK / folder).mkdir(parents=True, exist_ok=True)
    (WORK / "apt/status").touch()
    settings = {
        "APT::Architecture": "arm64", "APT::Architectures": "arm64", "APT::Sandbox::User": "",
        "Dir::State": WORK / "apt", "Dir::State::status": WORK / "apt/status", "Dir::Cache": WORK / "apt",
    }  # fmt: skip
    options = [f"-o{name}={value}" for name, value in settings.items()]
    run("apt-get", *options, "-qq", "update")
    run("apt-get", *options, "-qq", "download", *PYTHON, *LIBRARIES, cwd=WORK / "debs")
    (root / "usr/lib").mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    for package in sorted((WORK / "debs").glob("*_arm64.deb")):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as tar:
            run("tar", "-x", "-C", root, "--keep-directory-symlink", stdin=tar.stdout)
    (root / "complete").touch()
    return root


def build_wheel(root: Path) -> Path:
    """With the target's own sysconfig, so that setup.py, the compiler's flags and the tags are those of aarch64."""
    source, out, config = WORK / "source", WORK / "wheel", WORK / "config"
    for folder in (source, out, config):
        shutil.rmtree(folder, ignore_errors=True)
    ignore = shutil.ignore_patterns("build", "*.egg-info", "*.so", "*.c", "__pycache__")
    shutil.copytree(ROOT / "rowstore", source, ignore=ignore)
    config.mkdir()
    shutil.copy(root / f"usr/lib/python{VERSION}/_sysconfigdata__aarch64-linux-gnu.py", config)
    include = root / "usr/include"
    env = {
        **os.environ, "_PYTHON_HOST_PLATFORM": "linux-aarch64", "PYTHONPATH": str(config),
        "_PYTHON_SYSCONFIGDATA_NAME": "_sysconfigdata__aarch64-linux-gnu", "CC": "aarch64-linux-gnu-gcc",
        "LDSHARED": "aarch64-linux-gnu-gcc -shared", "CFLAGS": f"-I{include}/python{VERSION} -I{include}",
    }  # fmt: skip
    argv = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(source)]
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-5000:]}\naarch64: the wheel could not be built; see above")
    (wheel,) = out.glob("*linux_aarch64.whl")
    return wheel


def packages(wheel: Path) -> Path:
    """The wheel unpacked, and beside it the tests' own tools: hypothesis is compiled too, the others are .venv's."""
    site = WORK / "site"
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    run(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", site,
        "--platform", "manylinux_2_17_aarch64", "--python-version", VERSION, "--only-binary", ":all:",
        f"hypothesis=={metadata.version('hypothesis')}")  # fmt: skip
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        compiled = entry.suffix == ".so" or any(glob.iglob(f"{glob.escape(str(entry))}/**/*.so", recursive=True))
        if not compiled and not (site / entry.name).exists() and not entry.name.startswith(("__", "numpy", "dsv41")):
            (site / entry.name).symlink_to(entry)
    return site


def main() -> int:
    if why := missing():
        print(f"aarch64: {why}. Install qemu-user and gcc-aarch64-linux-gnu (Debian, Ubuntu).", file=sys.stderr)
        return 69
    WORK.mkdir(parents=True, exist_ok=True)
    root = sysroot()
    wheel = build_wheel(root)
    python = WORK / "python"  # what sys.executable is, so that tests can start Python again
    python.write_text(
        f"#!/bin/sh\nexport DSV41_UNDER_QEMU=1 PYTHONHOME={root}/usr PYTHONPATH={packages(wheel)}\n"
        f'exec qemu-aarch64 -L {root} -0 "$0" {root}/usr/bin/python{VERSION} "$@"\n'
    )
    python.chmod(0o755)
    print(f"aarch64: {wheel.name}", flush=True)
    argv = [python, "-m", "pytest", "tests/rowstore", "--ignore=tests/rowstore/test_rowstore_build.py",
            "-p", "no:cacheprovider", "-o", "timeout=1800", *(sys.argv[1:] or ["-q"])]  # fmt: skip
    return subprocess.run(argv, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
