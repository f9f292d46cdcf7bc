"""The two planes of an Engram table inside safetensors files, read by offset and never as a whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import RowFileRefused
from .layout import SCALE_BYTES, WEIGHT_BYTES, LayerGeometry, Span, engram_geometry

_FETCH = "Fetch this file again with the publisher's tool, or check that the checkpoint's mount is complete."
_ONE_BYTE = {"weight": ("F8_E4M3", "U8"), "scale": ("F8_E8M0", "U8")}
_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class Plane:
    """One tensor [n_rows, row_bytes] of single bytes: where it lies."""

    name: str
    path: Path
    offset_bytes: int
    n_rows: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class EngramTable:
    geometry: LayerGeometry
    weight: Plane
    scale: Plane


def _json(path: Path, what: str) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RowFileRefused(f"{path} does not exist ({what})", hint=_FETCH) from None
    except (OSError, ValueError) as error:
        raise RowFileRefused(f"{path} cannot be read ({what}): {error}", hint=_FETCH) from error


def _safetensors_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """(tensors by name, offset of the first data byte, file length)."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8 or length > 100 << 20:
                raise RowFileRefused(f"{path} is cut short inside its header ({size} bytes)", hint=_FETCH)
            tensors = json.loads(file.read(length))
    except FileNotFoundError:
        raise RowFileRefused(f"{path} does not exist", hint=_FETCH) from None
    except (OSError, ValueError) as error:
        raise RowFileRefused(f"{path} is not a readable safetensors file: {error}", hint=_FETCH) from error
    if not isinstance(tensors, dict):
        raise RowFileRefused(f"{path} is not a safetensors file: its header is not an object", hint=_FETCH)
    return tensors, 8 + length, size


def _plane(checkpoint: Path, weight_map: dict[str, str] | None, layer: int, kind: str, n_rows: int) -> Plane:
    tail = f"layers.{layer}.engram.embed.{kind}"
    if weight_map is None:
        path = checkpoint / "model.safetensors"
        tensors, start, size = _safetensors_header(path)
        names = tensors
        place = str(path)
    else:
        names = weight_map
        place = str(checkpoint / "model.safetensors.index.json")
    found = [name for name in names if name == tail or name.endswith("." + tail)]
    if len(found) != 1:
        raise RowFileRefused(
            f"{place} names {len(found)} tensors `{tail}`, expected 1"
            + (f": {sorted(found)}" if found else ""),
            hint=_FETCH,
        )
    name = found[0]
    if weight_map is not None:
        path = checkpoint / weight_map[name]
        tensors, start, size = _safetensors_header(path)
    entry = tensors.get(name)
    if not isinstance(entry, dict):
        raise RowFileRefused(f"{path} does not hold `{name}`, though the index says so", hint=_FETCH)
    row_bytes = WEIGHT_BYTES if kind == "weight" else SCALE_BYTES
    shape, dtype, offsets = entry.get("shape"), entry.get("dtype"), entry.get("data_offsets")
    if shape != [n_rows, row_bytes] or dtype not in _ONE_BYTE[kind]:
        raise RowFileRefused(
            f"`{name}` in {path} is {dtype} {shape}, expected {_ONE_BYTE[kind][0]} {[n_rows, row_bytes]}",
            hint="config.json and this file are from different revisions. " + _FETCH,
        )
    low, high = offsets if isinstance(offsets, list) and len(offsets) == 2 else (0, -1)
    if high - low != n_rows * row_bytes or low < 0:
        raise RowFileRefused(
            f"`{name}` in {path} has data offsets {offsets} that do not fit its shape", hint=_FETCH
        )
    if start + high > size:
        raise RowFileRefused(
            f"{path} is cut short: `{name}` ends at byte {start + high}, the file has {size}", hint=_FETCH
        )
    return Plane(name, path, start + low, n_rows, row_bytes)


def load_config(checkpoint: Path) -> dict[str, Any]:
    config = _json(checkpoint / "config.json", "the checkpoint's configuration")
    if not isinstance(config, dict):
        raise RowFileRefused(f"{checkpoint / 'config.json'} is not an object", hint=_FETCH)
    return config


def open_table(checkpoint: str | os.PathLike[str], layer: int) -> EngramTable:
    """Find layer's planes and check names, types, shapes and file lengths. Reads headers only.

    Raises: RowFileRefused, with the file and what is wrong with it.
    """
    root = Path(checkpoint)
    geometries = {g.layer: g for g in engram_geometry(load_config(root))}
    if layer not in geometries:
        raise RowFileRefused(
            f"layer {layer!r} has no Engram table in {root} (its Engram layers are {sorted(geometries)})",
            hint="Ask for one of these layers.",
        )
    geometry = geometries[layer]
    index = root / "model.safetensors.index.json"
    weight_map: dict[str, str] | None = None
    if index.exists() or not (root / "model.safetensors").exists():
        document = _json(index, "the list of checkpoint files")
        weight_map = document.get("weight_map") if isinstance(document, dict) else None
        if not isinstance(weight_map, dict):
            raise RowFileRefused(f"{index} has no weight_map", hint=_FETCH)
    weight = _plane(root, weight_map, layer, "weight", geometry.n_rows)
    scale = _plane(root, weight_map, layer, "scale", geometry.n_rows)
    return EngramTable(geometry, weight, scale)


def read_exactly(fd: int, view: memoryview, offset: int, path: Path) -> None:
    """Fill `view` from `offset`; a file that ends early is an error, never a short row."""
    done = 0
    while done < len(view):
        try:
            got = os.preadv(fd, [view[done:]], offset + done)
        except OSError as error:
            raise RowFileRefused(
                f"reading {path} at byte {offset + done} failed: {error.strerror}", hint=_FETCH
            ) from error
        if got == 0:
            raise RowFileRefused(f"{path} ends at byte {offset + done}, while it was being read", hint=_FETCH)
        done += got


def source_digest(table: EngramTable, spans: Sequence[Span]) -> bytes:
    """Names this table's content well enough to notice a checkpoint exchanged under the same revision.

    SHA-256 over names, shapes and 64 evenly spread rows of what this rank owns; 128 small reads.
    """
    digest = hashlib.sha256(b"dsv41 rows v1")
    n_rows = sum(span.stop - span.start for span in spans)
    picks = sorted({i * (n_rows - 1) // max(1, _SAMPLES - 1) for i in range(_SAMPLES)}) if n_rows else []
    for plane in (table.weight, table.scale):
        digest.update(f"{plane.name} {plane.n_rows} {plane.row_bytes}\n".encode())
        with open(plane.path, "rb") as file:
            view = memoryview(bytearray(plane.row_bytes))
            for local in picks:
                span = next(s for s in spans if local < s.local + s.stop - s.start)
                row = span.start + local - span.local
                read_exactly(file.fileno(), view, plane.offset_bytes + row * plane.row_bytes, plane.path)
                digest.update(view)
    return digest.digest()
