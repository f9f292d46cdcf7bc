"""Stage 3 of 7: fabric → SHARE → pack. Takes Settings, gives ShareReport.

Is this directory that checkpoint, whole and readable? A checkpoint file cut short loads as zeros or garbage in the
engine (users.md W5), so every header is read and compared with the file's size before anything is started.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import Refusal, Stage
from .settings import Settings

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER_BYTES = 100 << 20
"""Limit of the safetensors format itself."""


@dataclass(frozen=True, slots=True)
class ShareReport:
    """What the checkpoint looks like from one node."""

    path: str
    revision: str
    n_files: int
    n_bytes: int
    refusals: tuple[Refusal, ...]


class _Broken(Exception):
    pass


def check_checkpoint(settings: Settings, node: str) -> ShareReport:
    """Config, tokenizer, index and every checkpoint file's header against its size. Reads no weights.

    Blocking: run it in a thread, since a dead NFS server can hold any of these calls.
    """
    path = settings.checkpoint_dir(node)
    rank = settings.fleet.nodes[node].rank
    problems: list[str] = []
    n_bytes, files = 0, []
    if not path.is_dir():
        problems.append(f"there is no checkpoint directory {path}.")
    else:
        for name in ("config.json", "tokenizer.json"):
            if not (path / name).is_file():
                problems.append(f"{path / name} is missing.")
        try:
            files = checkpoint_files(path)
        except _Broken as error:
            problems.append(str(error))
        manifest = _manifest(settings, node, problems)
        for name in files:
            try:
                n_bytes += check_safetensors_file(path / name)
            except _Broken as error:
                problems.append(str(error))
                continue
            wanted = manifest.get(name)
            size = (path / name).stat().st_size
            if wanted is not None and wanted != size:
                problems.append(f"{path / name} has {size} bytes, the manifest says {wanted}.")
        missing = sorted(set(manifest) - set(files) - {p.name for p in path.iterdir()})
        problems += [f"{path / name} is in the manifest but missing." for name in missing]
    hint = f"Fetch the checkpoint again on {node}, or correct checkpoint.path."
    refusals = tuple(Refusal(Stage.SHARE, what, hint, node=node, rank=rank, check="checkpoint") for what in problems)
    return ShareReport(str(path), settings.checkpoint.revision, len(files), n_bytes, refusals)


def checkpoint_files(path: Path) -> list[str]:
    """Names of the checkpoint files, from the index or the single file."""
    if (path / INDEX).is_file():
        try:
            index = json.loads((path / INDEX).read_bytes())
            names = sorted(set(index["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise _Broken(f"{path / INDEX} is not a safetensors index ({error}).") from None
        if not names:
            raise _Broken(f"{path / INDEX} names no file.")
        bad = [n for n in names if not isinstance(n, str) or Path(n).name != n]
        if bad:
            raise _Broken(f"{path / INDEX} names files outside its directory: {bad[:3]}.")
        return names
    if (path / SINGLE).is_file():
        return [SINGLE]
    raise _Broken(f"{path} has neither {INDEX} nor {SINGLE}.")


def check_safetensors_file(path: Path) -> int:
    """Bytes of tensor data of one checkpoint file. Raises when the header and the size disagree."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(8)
            if len(head) < 8:
                raise _Broken(f"{path} is cut short: {size} bytes, not even a header.")
            (n_header,) = struct.unpack("<Q", head)
            if n_header > min(MAX_HEADER_BYTES, size - 8):
                raise _Broken(
                    f"{path} is cut short or not safetensors: header of {n_header} bytes in a file of {size}."
                )
            header: dict[str, Any] = json.loads(file.read(n_header))
    except OSError as error:
        raise _Broken(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise _Broken(f"{path} has a damaged header.") from None
    try:
        ends = [int(t["data_offsets"][1]) for name, t in header.items() if name != "__metadata__"]
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        raise _Broken(f"{path} has a damaged header.") from None
    expected = 8 + n_header + max(ends, default=0)
    if size != expected:
        what = "is cut short" if size < expected else "is longer than its header says"
        raise _Broken(f"{path} {what}: {size} bytes, expected {expected}.")
    return expected - 8 - n_header


def _manifest(settings: Settings, node: str, problems: list[str]) -> dict[str, int]:
    """Bytes by file name; empty without a manifest."""
    if settings.checkpoint.manifest is None:
        return {}
    path = settings.path(settings.checkpoint.manifest, node)
    try:
        raw = json.loads(path.read_bytes())
        if raw.get("revision", settings.checkpoint.revision) != settings.checkpoint.revision:
            problems.append(
                f"{path} is of revision {raw['revision']}, the fleet is pinned to {settings.checkpoint.revision}."
            )
        return {name: int(entry["bytes"]) for name, entry in raw["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(f"the manifest {path} cannot be read ({error}).")
        return {}
