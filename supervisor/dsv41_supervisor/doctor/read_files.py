"""Facts about this node's files: disks, checkpoint, packed rows. Blocking: a dead server can hold any of them."""

from __future__ import annotations

import os
from pathlib import Path

from ..pack import check_rows, read_config
from ..settings import Settings
from ..share import check_checkpoint
from .facts import MAX_ROWS, Checkpoint, Disk, Rows
from .read_proc import Mount, mount_of, read_mounts

ROW_BYTES = 264
"""256 FP8 weights and 8 scales. Source: rowstore/FORMAT.md v1."""
_TEXT = 300


def read_disks(settings: Settings, node: str) -> tuple[Disk, ...]:
    """The file systems under the directories that this node writes to or reads from; those that do not exist yet are
    looked at where they would be made."""
    mounts = read_mounts()
    wanted = {
        "state": settings.state_dir(node),
        "rows": settings.rows_dir(node),
        "checkpoint": settings.checkpoint_dir(node),
    }
    return tuple(_disk(purpose, path, mounts) for purpose, path in wanted.items())


def _disk(purpose: str, path: Path, mounts: list[Mount]) -> Disk:
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    mount = mount_of(str(there), mounts) or Mount("/", "unknown", "unknown")
    space = os.statvfs(there)
    return Disk(
        purpose=purpose, path=str(path), mount_point=mount.mount_point, filesystem=mount.filesystem[:64],
        source=mount.source[:1024], free=space.f_bavail * space.f_frsize, total=space.f_blocks * space.f_frsize,
    )  # fmt: skip


def read_checkpoint(settings: Settings, node: str) -> Checkpoint:
    """Index against files, every header against its file's size, and the manifest where there is one."""
    report = check_checkpoint(settings, node)
    return Checkpoint(
        path=report.path, n_files=report.n_files, n_bytes=report.n_bytes,
        problems=tuple(refusal.what[:_TEXT] for refusal in report.refusals[:MAX_ROWS]),
    )  # fmt: skip


def read_rows(settings: Settings, node: str) -> Rows:
    """Headers of this rank's packed rows against what this fleet needs."""
    manifest = check_rows(settings, node)
    return Rows(
        good=tuple(layer.path for layer in manifest.layers),
        to_pack=tuple(why[:_TEXT] for why in manifest.to_pack.values())[:MAX_ROWS],
        problems=tuple(refusal.what[:_TEXT] for refusal in manifest.refusals[:MAX_ROWS]),
        bytes_to_pack=_bytes_to_pack(settings, node, set(manifest.to_pack)),
    )


def _bytes_to_pack(settings: Settings, node: str, layers: set[int]) -> int | None:
    from dsv41_rowstore import RowStoreError, engram_geometry

    from ..errors import Dsv41Error

    if not layers:
        return 0
    try:
        geometry = engram_geometry(read_config(settings.checkpoint_dir(node)))
    except (Dsv41Error, RowStoreError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return sum(ROW_BYTES * g.n_rows for g in geometry if g.layer in layers) // settings.fleet.world_size
