"""A real podman for tests: a store of its own, an image without content, and the settings of a fleet that uses them.

The image holds empty directories only; Python and the engine are this machine's, mounted read-only. So the image takes
a moment to make and holds nothing to keep up to date, while all that podman does for a rank is real.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAME = "localhost/dsv41/empty"
NEEDED = ("podman", "crun", "catatonit")
_CATATONIT = ("/usr/libexec/podman/catatonit", "/usr/libexec/catatonit", "/usr/bin/catatonit")

# As under modules/container.nix: its capabilities, no new privileges, only some paths writable, cgroups read-only. And
# as a test machine needs it: crun refuses a mixture of both cgroup versions, and without CAP_SYS_RESOURCE a limit
# cannot be lifted to podman's default.
_WRAPPER = """#!/bin/sh
command=$1; shift
[ "$command" = run ] && set -- --ulimit nproc=$(ulimit -Hn):$(ulimit -Hn) "$@"
[ "$command" = rm ] && [ -e {store}/rm-fails ] && echo "Error: told to fail" >&2 && exit 125
set -- setpriv --bounding-set={capabilities} --no-new-privs podman --root {store}/root --runroot {store}/run \
  --tmpdir {store}/tmp --cgroup-manager cgroupfs --events-backend none --runtime crun "$command" "$@"
exec unshare --mount --propagation slave sh -c '
  [ -e /sys/fs/cgroup/cgroup.controllers ] || umount -R /sys/fs/cgroup &&
  mount -t cgroup2 -o ro cgroup2 /sys/fs/cgroup &&
  mount --bind {base} {base} && mount --bind /run /run && mount --bind /var/tmp /var/tmp &&
  mount -o remount,bind,ro / && exec "$@"' sh "$@"
"""


def _capabilities() -> str:
    """What the module leaves podman, as setpriv takes it."""
    text = (ROOT / "modules/container.nix").read_text()
    return ",".join(["-all", *(f"+{name.lower()}" for name in re.findall(r'"CAP_(\w+)"', text))])


@dataclass(frozen=True)
class Podman:
    """The program that tests name in `engine.container.podman`, and the image in its store."""

    program: Path
    image: str

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def fail_to_remove(self, fail: bool) -> None:
        """Whether `podman rm` fails from now on."""
        flag = self.program.with_name("rm-fails")
        flag.touch() if fail else flag.unlink()

    def containers(self) -> list[str]:
        return sorted(self("ps", "--all", "--format", "{{.Names}}").split())

    def use(self, raw: dict[str, Any], tmp_path: Path) -> None:
        """Change a fleet's settings document so that its engine runs in the image."""
        engine = raw["engine"]
        del engine["python"]
        engine["container"] = {
            "image": self.image,
            "podman": str(self.program),
            "python": sys.executable,
            "cache_dir": f"{tmp_path}/fleet/{{node}}/cache",
            "mounts": sorted({"/usr", sys.base_prefix, sys.prefix, str(ROOT), str(tmp_path)}),
        }


def missing() -> str | None:
    """Why no container can be run here; None when one can."""
    absent = [name for name in NEEDED[:2] if shutil.which(name) is None]
    if not any(os.access(path, os.X_OK) for path in _CATATONIT):
        absent.append(NEEDED[2])
    if absent:
        return f"{', '.join(absent)} is not installed"
    return None if os.geteuid() == 0 else "only root may run the containers of these tests"


def open_podman(store: Path) -> Podman:
    """A store below `store`, with the image."""
    program = store / "podman"
    for name in ("root", "run", "tmp"):
        (store / name).mkdir(parents=True)
    base = store.parent
    program.write_text(_WRAPPER.format(store=store, base=base, capabilities=_capabilities()))
    program.chmod(0o755)
    archive = store / "image.tar"
    write_image(archive)
    podman = Podman(program, "")
    podman("import", str(archive), f"{NAME}:test")
    digest = podman("image", "inspect", "--format", "{{.Digest}}", f"{NAME}:test")
    return Podman(program, f"{NAME}@{digest}")


def write_image(archive: Path) -> None:
    """For `podman import`: places to mount at."""
    with tarfile.open(archive, "w") as tar:
        for name in ("dev", "etc", "proc", "run", "sys", "tmp", "usr"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name in ("bin", "lib", "lib64", "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
        stamp = sysconfig.get_platform().encode()
        entry = tarfile.TarInfo("etc/made-for")
        entry.size = len(stamp)
        tar.addfile(entry, io.BytesIO(stamp))


def close_podman(podman: Podman) -> None:
    """Containers that are left would hold mounts below a folder that is removed."""
    podman("rm", "--all", "--force", "--time", "0")
    subprocess.run(["umount", "-R", str(podman.program.parent / "root/overlay")], capture_output=True)
