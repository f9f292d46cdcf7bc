"""The list of system calls that an engine in a container may not make, as the kernel applies it: not io_uring."""

from __future__ import annotations

import errno
import json
import sys

from dsv41_supervisor.rank.container import SECCOMP

from tests.harness.podman import Podman

# Raw calls, by number on x86-64 and aarch64: what they fail with says who refused them.
PROGRAM = """
import ctypes, json, platform
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
def call(number, *args):
    ctypes.set_errno(0)
    return 0 if libc.syscall(number, *args) >= 0 else ctypes.get_errno()
print(json.dumps({
    "io_uring_setup": call(425, 1, None),
    "unshare": call(272 if x86 else 97, 0x10000000),
    "bpf": call(321 if x86 else 280, 0, None, 0),
}))
"""


def test_io_uring_reaches_the_kernel_and_ways_out_do_not(podman: Podman) -> None:
    said = podman(
        "run", "--rm", "--network=host", "--cgroups=disabled", "--init", "--cap-drop=all",
        "--ulimit", "nofile=1024:1024", "--log-driver=passthrough", f"--security-opt=seccomp={SECCOMP}",
        *(f"--volume={path}:{path}:ro" for path in sorted({"/usr", sys.base_prefix, sys.prefix})),
        "--entrypoint", sys.executable, podman.image, "-I", "-S", "-c", PROGRAM,
    )  # fmt: skip
    # EFAULT: the kernel looked at our null pointer. A new user namespace needs no capability, so only the list is left.
    assert json.loads(said) == {"io_uring_setup": errno.EFAULT, "unshare": errno.EPERM, "bpf": errno.EPERM}
