"""Engram rows off local NVMe: pack a checkpoint's tables into one file per layer and rank, read them exactly.

See FORMAT.md for the bytes on disk, `packer` for writing, `store` for reading.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import EngineFailed, RowFileRefused, RowOutOfRange, RowStoreError, StoreCorrupt
from .layout import (
    ROW_BYTES,
    SCALE_BYTES,
    WEIGHT_BYTES,
    Header,
    LayerGeometry,
    Partition,
    engram_geometry,
    read_header,
    rows_path,
)

if TYPE_CHECKING:
    from .hostcall import HostCall
    from .ids import EngramHash
    from .packer import PackProgress, pack_layer, verify_rows
    from .store import Job, RowStore

__version__ = "0.1.0"
__all__ = [
    "ROW_BYTES", "SCALE_BYTES", "WEIGHT_BYTES", "EngineFailed", "EngramHash", "Header", "HostCall", "Job",
    "LayerGeometry", "PackProgress", "Partition", "RowFileRefused", "RowOutOfRange", "RowStore", "RowStoreError",
    "StoreCorrupt", "engram_geometry", "pack_layer", "read_header", "rows_path", "verify_rows",
]  # fmt: skip

_LATER = {
    "EngramHash": "ids", "HostCall": "hostcall", "Job": "store", "PackProgress": "packer", "RowStore": "store",
    "pack_layer": "packer", "verify_rows": "packer",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """The compiled store is loaded by whoever uses it: a supervisor only reads headers and lives for months."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LATER[name]}", __name__), name)
