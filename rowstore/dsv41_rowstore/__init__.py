"""Engram rows off local NVMe: pack a checkpoint's tables into one file per layer and rank, read them exactly.

See FORMAT.md for the bytes on disk, `packer` for writing, `store` for reading.
"""

from __future__ import annotations

from .errors import EngineFailed, RowFileRefused, RowOutOfRange, RowStoreError, StoreCorrupt
from .hostcall import HostCall
from .ids import EngramHash
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
from .packer import PackProgress, pack_layer, verify_rows
from .store import Job, RowStore

__version__ = "0.1.0"
__all__ = [
    "ROW_BYTES", "SCALE_BYTES", "WEIGHT_BYTES", "EngineFailed", "EngramHash", "Header", "HostCall", "Job",
    "LayerGeometry", "PackProgress", "Partition", "RowFileRefused", "RowOutOfRange", "RowStore", "RowStoreError",
    "StoreCorrupt", "engram_geometry", "pack_layer", "read_header", "rows_path", "verify_rows",
]  # fmt: skip
