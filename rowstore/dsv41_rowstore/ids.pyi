from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import Buffer

MM_PAD_SHIFT: int

class EngramHash:
    layers: tuple[int, ...]
    n_tokens: int
    n_heads: int
    n_columns: int
    def __init__(
        self, config: Mapping[str, Any], token_map: Buffer, *, image_token_id: int | None = None
    ) -> None: ...
    def sequence(self, layer: int, tokens: Buffer, out: Buffer, *, history: Iterable[int] = ()) -> None: ...
    def windows(self, layer: int, tokens: Buffer, blocked: Buffer, out: Buffer) -> None: ...
