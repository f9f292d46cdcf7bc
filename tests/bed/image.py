"""The disk that the guests of the bed boot from: Debian with a kernel that has rdma_rxe. Made once, from packages.

Nothing of this checkout is in it; `programs` packs that for every boot, so that an edit needs no new image.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSIDE = Path(__file__).parent / "inside"
SUITE = "trixie"
MIRROR = "DSV41_BED_MIRROR"
"""Names a Debian mirror; without it, the one that this machine's apt uses."""
GUEST_PYTHON = "3.13"
PACKAGES = (
    "kmod", "iproute2", "iputils-ping", "ethtool", "nftables", "python3", "ibverbs-providers", "ibverbs-utils",
    "perftest", "tini",
)  # fmt: skip
WHEELS = (
    "pydantic>=2.11,<3", "aiohttp>=3.12,<4", "httptools>=0.6.4,<1", "uvloop>=0.21,<1", "pyroute2>=0.9.5,<0.10",
    "dbus-fast>=2.44,<6", "rich>=14,<16",
)  # fmt: skip
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86", "mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "cpio": "cpio",
    "zstd": "zstd", "xz": "xz-utils", "busybox": "busybox-static", "dpkg-deb": "dpkg", "apt-get": "apt",
}  # fmt: skip
KERNEL_HOOK = (
    'cd "$DSV41_BED_KERNEL" && export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" && apt-get -q download '
    '"$(apt-cache depends linux-image-amd64 | sed -n "s/.*Depends: \\(linux-image-.*\\)/\\1/p" | head -1)"'
)
SOURCES = (
    ("supervisor", "dsv41_supervisor"), ("adapters", "dsv41_adapters"), ("rowstore", "dsv41_rowstore"),
)  # fmt: skip
IMAGE_BYTES = 1500 << 20


def why_not() -> str | None:
    """What is missing to make or boot the bed; None when nothing is."""
    if os.geteuid() != 0:
        return "not root"
    missing = sorted(package for tool, package in TOOLS.items() if shutil.which(tool) is None)
    if missing:
        return f"not installed: apt-get install {' '.join(missing)}"
    return None


def ensure(cache: Path) -> None:
    """Make image, kernel and initrd in `cache`, unless they are there as this file and the initrd's script want it."""
    wanted = hashlib.sha256(Path(__file__).read_bytes() + (INSIDE / "initrd-init").read_bytes()).hexdigest()
    stamp = cache / "made"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    stamp.unlink(missing_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    root, kernel = cache / "root", cache / "kernel"
    unpacked, packages = cache / "root-made", repr((SUITE, PACKAGES, WHEELS, PLATFORMS, KERNEL_HOOK))
    if not unpacked.exists() or unpacked.read_text() != packages:
        unpacked.unlink(missing_ok=True)
        _make_root(root, kernel)
        _install_wheels(root)
        unpacked.write_text(packages)
    version = _install_kernel(root, kernel)
    (cache / "vmlinux").write_bytes(_unpacked_kernel(kernel / f"tree/boot/vmlinuz-{version}"))
    _make_initrd(root, version, cache)
    image = cache / "image"
    image.unlink(missing_ok=True)
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    _run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", str(root), str(image))
    stamp.write_text(wanted)


def programs(cache: Path, target: Path) -> None:
    """This checkout's packages and what runs in a guest, as a tar that a guest reads from its second disk."""
    tree = cache / "root/opt/dsv41/src"
    shutil.rmtree(tree, ignore_errors=True)
    for distribution, package in SOURCES:
        shutil.copytree(
            ROOT / distribution / package, tree / package, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.c")
        )
    # Compiled here: in a guest every instruction is emulated.
    compiled = ("python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "/opt/dsv41/src")
    _run("chroot", str(cache / "root"), *compiled)
    with tarfile.open(target, "w") as tar:
        tar.add(tree, "src")
        tar.add(ROOT / "demo", "demo", filter=lambda entry: None if "__pycache__" in entry.name else entry)
        for name in ("init", "agent.py"):
            tar.add(INSIDE / name, f"bed/{name}", filter=_executable)
        tar.add(cache / "initrd-tree/bin/busybox", "bed/busybox")


def _executable(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mode = 0o755
    return entry


def _make_root(root: Path, kernel: Path) -> None:
    for path in (root, kernel):
        shutil.rmtree(path, ignore_errors=True)
    kernel.mkdir(parents=True)
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    _run(
        "mmdebstrap", "--variant=apt", "--mode=root", f"--include={','.join(PACKAGES)}",
        '--aptopt=Acquire::Languages "none"', *excluded, f"--customize-hook={KERNEL_HOOK}", SUITE, str(root),
        os.environ.get(MIRROR) or _mirror(), DSV41_BED_KERNEL=str(kernel),
    )  # fmt: skip


def _mirror() -> str:
    shown = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)|$(LABEL)", "Created-By: Packages"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for line in shown.splitlines():
        site, _, label = line.partition("|")
        if label == "Debian":
            return site
    raise SystemExit(f"this machine's apt knows no Debian mirror; name one in {MIRROR}")


def _install_kernel(root: Path, kernel: Path) -> str:
    """Its modules go into `root`; returns its version."""
    tree = kernel / "tree"
    if not tree.exists():
        (package,) = kernel.glob("linux-image-*.deb")
        _run("dpkg-deb", "-x", str(package), str(tree))
    (modules,) = (tree / "usr/lib/modules").iterdir()
    target = root / "usr/lib/modules" / modules.name
    if not target.exists():
        shutil.copytree(modules, target, symlinks=True)
        _run("chroot", str(root), "depmod", modules.name)
    return modules.name


def _install_wheels(root: Path) -> None:
    site = root / "opt/dsv41/site"
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    _run(
        sys.executable, "-m", "pip", "install", "-q", "--only-binary=:all:", "--python-version", GUEST_PYTHON,
        "--implementation", "cp", *platforms, "--no-compile", "--target", str(site), *WHEELS,
    )  # fmt: skip
    _run("chroot", str(root), "python3", "-m", "compileall", "-q", "/opt/dsv41/site")


def _unpacked_kernel(path: Path) -> bytes:
    """What the boot loader would unpack: the guest need not, at an emulated processor's speed."""
    packed = path.read_bytes()

    def word(offset: int) -> int:
        return int.from_bytes(packed[offset : offset + 4], "little")

    # Offsets of the Linux boot protocol: sectors of set-up code, then payload_offset and payload_length. The last four
    # bytes of the payload are its unpacked length.
    start = (packed[0x1F1] + 1) * 512 + word(0x248)
    payload = packed[start : start + word(0x24C) - 4]
    return subprocess.run(["zstd", "-dcq"], input=payload, capture_output=True, check=True).stdout


def _make_initrd(root: Path, version: str, cache: Path) -> None:
    tree = cache / "initrd-tree"
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("bin", "modules", "dev", "root"):
        (tree / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy2(busybox, tree / "bin/busybox")
    shutil.copy2(INSIDE / "initrd-init", tree / "init")
    (tree / "init").chmod(0o755)
    order: list[str] = []
    for module in ("virtio_blk", "ext4"):
        shown = _run("chroot", str(root), "modprobe", "-S", version, "--show-depends", module)
        order += [line.split()[1] for line in shown.splitlines() if line.startswith("insmod")]
    names = []
    for path in dict.fromkeys(order):
        name = Path(path).name.removesuffix(".xz")
        data = (root / path.lstrip("/")).read_bytes()
        if path.endswith(".xz"):
            data = subprocess.run(["xz", "-dc"], input=data, capture_output=True, check=True).stdout
        (tree / "modules" / name).write_bytes(data)
        names.append(name)
    (tree / "modules/order").write_text("\n".join(names) + "\n")
    packed = f"cd {shlex.quote(str(tree))} && find . | cpio -o -H newc --quiet > {shlex.quote(str(cache / 'initrd'))}"
    _run("sh", "-c", packed)


def _run(*argv: str, **environment: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", env=os.environ | environment)
    if done.returncode:
        raise SystemExit(f"{shlex.join(argv)} ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
