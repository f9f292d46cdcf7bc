"""What can go wrong, as types a caller decides on. Every message: what happened, where, what to do next."""

from __future__ import annotations


class RowStoreError(Exception):
    """A row store operation failed; `hint` says what to do next and is never empty."""

    def __init__(self, what: str, *, hint: str) -> None:
        if not hint:
            raise ValueError("a RowStoreError needs a hint: what should the reader do next?")
        super().__init__(f"{what.rstrip('.')}. {hint}")
        self.what = what
        self.hint = hint


class RowFileRefused(RowStoreError):
    """A file (packed rows or a checkpoint table) is for another rank, version, shape or revision."""


class StoreCorrupt(RowStoreError):
    """Bytes that should be there are missing or differ from their checksum."""

    def __init__(
        self,
        what: str,
        *,
        hint: str,
        path: str | None = None,
        row: int | None = None,
        offset_bytes: int | None = None,
        errno: int | None = None,
    ) -> None:
        super().__init__(what, hint=hint)
        self.path, self.row, self.offset_bytes, self.errno = path, row, offset_bytes, errno


class EngineFailed(RowStoreError):
    """The engine that reads (ring or thread) stopped for good; nothing about the rows is known to be wrong."""

    def __init__(self, what: str, *, hint: str, errno: int) -> None:
        super().__init__(what, hint=hint)
        self.errno = errno


class RowOutOfRange(RowStoreError, IndexError):
    """An id below 0 or past the layer's last row; raised before any read, no output was touched."""

    def __init__(self, layer: int, row_id: int, position: int, n_rows: int) -> None:
        super().__init__(
            f"row id {row_id} at position {position} is outside layer {layer}'s table of {n_rows} rows",
            hint="The ids were hashed for another checkpoint or layer; "
            "compare the geometry of config.json with the engine's.",
        )
        self.layer, self.row_id, self.position, self.n_rows = layer, row_id, position, n_rows
