"""Stage 4 of 7: share → PACK → rank. Takes Settings and ShareReport, gives PackManifest.

Are these rows for this rank, world size, partition and checkpoint? If not, pack them: this rank's Engram rows,
weight and scale side by side, on the node's own NVMe. A rank never reads the tables in the checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from .atomic import write_json
from .errors import Dsv41Error, Refusal, Refused, Stage
from .settings import Settings

PROGRESS = "pack-progress.json"


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """One packed file of this rank, as its header says."""

    layer: int
    path: str
    n_rows: int


@dataclass(frozen=True, slots=True)
class PackManifest:
    """This rank's packed rows. `to_pack` lists what is missing or of another fleet, with the reason."""

    layers: tuple[PackedLayer, ...]
    to_pack: dict[int, str]
    refusals: tuple[Refusal, ...]
    packed: tuple[int, ...] = ()
    """Layers that were written just now; the others were good already."""


def read_config(checkpoint: Path) -> dict[str, object]:
    """config.json of the checkpoint."""
    path = checkpoint / "config.json"
    try:
        raw = json.loads(path.read_bytes())
        if not isinstance(raw, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError) as error:
        raise Dsv41Error(
            f"{path} cannot be read ({error}).",
            stage=Stage.PACK,
            hint="Fetch the checkpoint again, or correct checkpoint.path.",
        ) from None
    return raw


def check_rows(settings: Settings, node: str) -> PackManifest:
    """Compare the packed files' headers with what this fleet needs. Reads one page a file."""
    from dsv41_rowstore import RowStoreError, engram_geometry, read_header, rows_path

    rank, world_size = settings.fleet.nodes[node].rank, settings.fleet.world_size
    layers: list[PackedLayer] = []
    to_pack: dict[int, str] = {}
    refusals: list[Refusal] = []
    try:
        geometry = engram_geometry(read_config(settings.checkpoint_dir(node)))
    except Dsv41Error as error:
        return PackManifest((), {}, error.refusals)
    except (RowStoreError, ValueError, KeyError, TypeError, AttributeError) as error:
        refusals.append(
            Refusal(Stage.PACK, f"config.json does not describe Engram tables: {error}.", "Correct checkpoint.path.",
                    node=node, rank=rank, check="engram-geometry")
        )  # fmt: skip
        return PackManifest((), {}, tuple(refusals))
    for wanted in geometry:
        path = rows_path(settings.rows_dir(node), wanted.layer, rank, world_size)
        if not path.exists():
            to_pack[wanted.layer] = f"{path} is missing"
            continue
        try:
            header = read_header(path)
        except (RowStoreError, OSError) as error:
            to_pack[wanted.layer] = f"{path} is not usable: {error}"
            continue
        differs = [
            f"{what} {got}, expected {expected}"
            for what, got, expected in (
                ("layer", header.layer, wanted.layer),
                ("rank", header.rank, rank),
                ("world size", header.world_size, world_size),
                ("partition", str(header.partition), str(settings.pack.partition)),
                ("revision", header.revision, settings.checkpoint.revision),
                ("head sizes", tuple(header.head_sizes), tuple(wanted.head_sizes)),
            )
            if got != expected
        ]
        if differs:
            to_pack[wanted.layer] = f"{path} has {'; '.join(differs)}"
        else:
            layers.append(PackedLayer(wanted.layer, str(path), header.n_rows))
    return PackManifest(tuple(layers), to_pack, tuple(refusals))


def pack(settings: Settings, node: str, show: Callable[[int, int, float], None] | None = None) -> PackManifest:
    """Pack every layer whose file is missing, of another fleet, or of other tables; then check again.

    Safe to run again at any point. `show(done_bytes, total_bytes, bytes_per_s)` is called as it goes; the same figures
    go to the run directory for `dsv41 status`. Raises Dsv41Error or Refused.
    """
    from dsv41_rowstore import Partition, RowStoreError, engram_geometry, pack_layer, rows_path

    rank, world_size = settings.fleet.nodes[node].rank, settings.fleet.world_size
    before = check_rows(settings, node)
    if before.refusals:
        raise Refused(before.refusals)
    directory = settings.rows_dir(node)
    progress_path = settings.run_dir(node) / PROGRESS
    packed: list[int] = []
    reported = False
    try:
        directory.mkdir(parents=True, exist_ok=True)
        geometry = {g.layer: g for g in engram_geometry(read_config(settings.checkpoint_dir(node)))}
        needed = sum(
            264 * geometry[layer].n_rows // world_size - _allocated(rows_path(directory, layer, rank, world_size))
            for layer in before.to_pack
        )
        free = shutil.disk_usage(directory).free
        if needed > free:
            raise Dsv41Error(
                f"{directory} has {free / 2**20:,.0f} MiB free, packing needs {needed / 2**20:,.0f} MiB more.",
                stage=Stage.PACK, node=node, rank=rank, hint="Free some space, or set pack.directory elsewhere.",
                transient=True,
            )  # fmt: skip
        # Of a file that looks good, pack_layer still compares samples with the tables: a checkpoint may have been
        # exchanged under the same revision.
        for i, layer in enumerate(sorted(geometry)):

            def report(p: object, i: int = i, layer: int = layer) -> None:
                done, total, rate = p.done_bytes, p.total_bytes, p.rate_bytes_per_s  # type: ignore[attr-defined]
                nonlocal reported
                reported = True
                write_json(progress_path, {"layer": layer, "fraction": (i + done / max(total, 1)) / len(geometry),
                                           "bytes_per_s": rate})  # fmt: skip
                if show is not None:
                    show(done, total, rate)

            path = rows_path(directory, layer, rank, world_size)
            was = _identity(path)
            pack_layer(
                settings.checkpoint_dir(node), directory, layer=layer, rank=rank, world_size=world_size,
                partition=Partition(str(settings.pack.partition)), revision=settings.checkpoint.revision,
                progress=report,
            )  # fmt: skip
            if _identity(path) != was:
                packed.append(layer)
    except RowStoreError as error:
        raise Dsv41Error(
            str(error), stage=Stage.PACK, node=node, rank=rank, hint="Then run dsv41 pack again."
        ) from error
    except OSError as error:
        raise Dsv41Error(
            f"packing to {directory} failed: {error.strerror or error}.",
            stage=Stage.PACK, node=node, rank=rank, transient=True,
            hint="Nothing half-written is left that a later start would trust; fix the cause and run dsv41 pack.",
        ) from error  # fmt: skip
    finally:
        if reported:  # else it is another process's, which packs just now
            progress_path.unlink(missing_ok=True)
    after = check_rows(settings, node)
    if after.to_pack or after.refusals:
        raise Refused(
            (*after.refusals, *(
                Refusal(Stage.PACK, f"after packing, {why}.", "Run dsv41 pack --verify.", node=node, rank=rank)
                for why in after.to_pack.values()
            ))
        )  # fmt: skip
    return replace(after, packed=tuple(packed))


def _identity(path: Path) -> tuple[int, int] | None:
    """A file that was packed anew is another one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _allocated(path: Path) -> int:
    """Bytes on the drive that an interrupted packing of this file holds already; it is carried on."""
    try:
        return os.stat(f"{path}.tmp").st_blocks * 512
    except OSError:
        return 0
