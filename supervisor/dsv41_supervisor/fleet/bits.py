"""What must be equal on every rank, collected on one node. Blocking: call it in a thread.

Two moments: before admission, what would be loaded (`planned`); and once the rank answers, what is (`running`). A fact
that cannot be had is a text that says why, so that it is compared like any other and never quietly left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from .. import __version__
from ..fabric.facts import NcclLibrary
from ..fabric.nccl_library import mapped_libraries, planned_library, read_library, read_mapped
from ..fabric.roots import Roots, Unreadable
from ..rank.nccl import denied
from ..settings import Device, Settings

_STORE = re.compile(r"^/nix/store/([0-9a-z]{32})-([^/]+)")
_PACKAGES = ("sglang", "dsv41_adapters", "dsv41_rowstore")
"""Compared file by file (names and sizes), beyond what their installer wrote down: a copy that lost a folder boots."""
MAX_FILES = 50_000


def planned(settings: Settings, node: str, roots: Roots | None = None) -> dict[str, str]:
    """Facts that are known before a rank starts."""
    roots = roots or Roots()
    speculative = settings.engine.speculative
    return {
        "supervisor version": __version__,
        "supervisor closure": _closure(Path(__file__).resolve()) or "not from the Nix store",
        "settings hash": settings.hash,
        "adapters asked": ", ".join(sorted(settings.adapters_asked)) or "none",
        "engine": engine(settings),
        "libnccl": _planned_nccl(settings),
        "checkpoint revision": settings.checkpoint.revision,
        "packed rows": packed_rows(settings, node),
        "SPS table": _file(settings.path(speculative.sps_table, node))
        if speculative is not None and speculative.sps_table is not None else "none",
        "kernel": os.uname().release,
        "driver": driver(roots),
    }  # fmt: skip


def running(settings: Settings, pids: Iterable[int], armed: Mapping[str, str], roots: Roots | None = None):  # type: ignore[no-untyped-def]
    """Facts of a rank that runs: `(facts, why this rank must not go on or None)`."""
    roots = roots or Roots()
    if settings.engine.container is not None:
        return running_in_container(settings, tuple(pids), armed, roots)
    paths = mapped_libraries(roots, pids)
    said = [_library(path) for path in paths]
    facts = _running_facts(armed, said)
    if settings.engine.device is not Device.CUDA:
        return facts, None
    expected = _planned_nccl(settings)
    if len(paths) > 1:
        return facts, f"its processes have mapped {len(paths)} different libnccl: {'; '.join(said)}"
    if not paths:
        return facts, "none of its processes has mapped a libnccl, which every collective needs" if pids else None
    if said[0] != expected:
        return facts, f"it has mapped libnccl {said[0]}, expected {expected}"
    return facts, None


def running_in_container(settings: Settings, pids: tuple[int, ...], armed: Mapping[str, str], roots: Roots):  # type: ignore[no-untyped-def]
    """As `running`. What is in the image is first seen here: no check before the start could read it."""
    libraries: dict[str, NcclLibrary] = {}
    for pid in pids:
        for path in mapped_libraries(roots, [pid]):
            if str(path) not in libraries:
                try:
                    libraries[str(path)] = read_mapped(roots, pid, path)
                except Unreadable as error:
                    return _running_facts(armed, [f"unreadable: {error}"]), f"its libnccl cannot be read: {error}"
    said = [_shown(library) for library in libraries.values()]
    facts = _running_facts(armed, said)
    if settings.engine.device is not Device.CUDA:
        return facts, None
    if len(said) > 1:
        return facts, f"its processes have mapped {len(said)} different libnccl: {'; '.join(said)}"
    if not said:
        return facts, "none of its processes has mapped a libnccl, which every collective needs" if pids else None
    (library,) = libraries.values()
    if (row := denied(library.version, library.build_id)) is not None:
        return facts, f"it has mapped libnccl {said[0]}, which wedges: {row.reason} ({row.source})"
    if in_image(settings) is None and said[0] != (expected := _planned_nccl(settings)):
        return facts, f"it has mapped libnccl {said[0]}, expected {expected}"
    return facts, None


def _running_facts(armed: Mapping[str, str], libraries: list[str]) -> dict[str, str]:
    states = sorted(f"{name} {'armed' if state == 'engaged' else state}" for name, state in armed.items())
    return {"adapters armed": ", ".join(states) or "none", "libnccl mapped": "; ".join(libraries) or "none"}


def engine(settings: Settings) -> str:
    """The engine's environment: its Nix closure, or a digest of what is installed beside its Python."""
    code = "".join(f" {_tree(Path(p), '.py')[:16]}" for p in settings.engine.python_path)
    if settings.engine.container is not None:
        return settings.engine.container.image.partition("@")[2] + code
    assert settings.engine.python is not None
    python = Path(settings.engine.python)
    if (store := _closure(python)) is not None:
        return store + code
    site = sorted(python.parent.parent.glob("lib/python3*/site-packages"))
    if not site:
        return f"unknown: no site-packages beside {python}"
    digest = hashlib.sha256()
    try:
        for record in sorted(site[-1].glob("*.dist-info/RECORD")):
            # An installer's own lines (RECORD of what pip wrote, direct_url, compiled files) differ by path and time.
            lines = [
                line for line in record.read_bytes().splitlines()
                if b".dist-info/" not in line and b"__pycache__" not in line and not line.startswith(b"../")
                and b"__editable__" not in line
            ]  # fmt: skip
            digest.update(record.parent.name.encode() + b"\0" + b"\n".join(sorted(lines)) + b"\0")
        for package in _PACKAGES:
            if (site[-1] / package).is_dir():
                digest.update(_sizes(site[-1] / package))
    except OSError as error:
        return f"unknown: {error.filename}: {error.strerror}"
    return digest.hexdigest() + code


def packed_rows(settings: Settings, node: str) -> str:
    """Digest of what the headers of all ranks' packed files have in common; each names its rank, and so must differ."""
    if not settings.adapters_asked:
        return "not used"
    from dsv41_rowstore import RowStoreError, read_header

    number, world = settings.fleet.nodes[node].rank, settings.fleet.world_size
    digest = hashlib.sha256()
    paths = sorted(settings.rows_dir(node).glob(f"engram-l*-r{number}of{world}.bin"))
    if not paths:
        return "not packed"
    for path in paths:
        try:
            header = read_header(path)
        except (RowStoreError, OSError) as error:
            return f"unreadable: {error}"
        common = (
            header.version, header.revision, header.layer, header.world_size, str(header.partition),
            list(header.head_sizes), header.row_bytes, header.table_rows, header.segment_rows,
        )  # fmt: skip
        digest.update(json.dumps(common).encode())
    return digest.hexdigest()


def driver(roots: Roots) -> str:
    """Version of the GPU's kernel module."""
    try:
        text = (roots.proc / "driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return "none"
    # "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.173.02  Release Build  (…)"
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text.splitlines()[0] if text else "")
    return found[1] if found else f"unknown: {text.splitlines()[0][:80] if text else 'empty'}"


# -- private -----------------------------------------------------------------------------------------------------------


def _planned_nccl(settings: Settings) -> str:
    nccl = settings.engine.nccl
    if (where := in_image(settings)) is not None:
        return where
    try:
        path = planned_library(
            settings.engine.python or "", nccl.library, settings.engine.environment.get("LD_PRELOAD", "")
        )
        return _library(path)
    except Unreadable as error:
        return f"none: {error}" if settings.engine.device is Device.CUDA else "none"


def in_image(settings: Settings) -> str | None:
    """Where libnccl is when it is in the engine's image, and so cannot be read before a rank runs; None elsewhere."""
    engine = settings.engine
    if engine.container is None or engine.nccl.library is not None or engine.device is not Device.CUDA:
        return None
    return f"in the image {engine.container.image.partition('@')[2]}"


def _library(path: Path) -> str:
    try:
        library = read_library(path)
    except Unreadable as error:
        return f"unreadable: {error}"
    return _shown(library)


def _shown(library: NcclLibrary) -> str:
    return f"{library.version or 'unknown version'} {library.sha256[:16]} {library.path}"


def _closure(path: Path) -> str | None:
    """`hash-name` of the store path that a file is in; None outside the Nix store."""
    for candidate in (str(path), os.path.realpath(path)):
        if (found := _STORE.match(candidate)) is not None:
            return f"{found[1]}-{found[2]}"
    return None


def _file(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return f"unreadable: {path}: {error.strerror}"


def _tree(directory: Path, suffix: str) -> str:
    """Digest over names and contents of the files below a directory."""
    digest = hashlib.sha256()
    try:
        for n, path in enumerate(sorted(directory.rglob(f"*{suffix}"))):
            if n > MAX_FILES:
                return f"unknown: more than {MAX_FILES} files below {directory}"
            digest.update(f"{path.relative_to(directory)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    except OSError as error:
        return f"unknown: {error.filename}: {error.strerror}"
    return digest.hexdigest()


def _sizes(directory: Path) -> bytes:
    """Digest over names and sizes of a package's files; contents are in the installer's RECORD."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            size = os.stat(os.path.join(folder, name)).st_size
            digest.update(f"{os.path.relpath(folder, directory)}/{name}\0{size}\0".encode())
    return digest.digest()
