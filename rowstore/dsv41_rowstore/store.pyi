from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from typing_extensions import Buffer

from .layout import Partition

class Job:
    def done(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> None: ...
    def cancel(self) -> None: ...
    def fileno(self) -> int: ...

class RowStore:
    @staticmethod
    def open(
        paths: Mapping[int, str | os.PathLike[str]],
        *,
        rank: int,
        world_size: int,
        partition: Partition | str,
        revision: str | None = None,
        cache_bytes: int = 0,
        ways: int = 16,
        engine: str = "auto",
        direct: bool | None = None,
        read_bytes: int | None = None,
        queue_depth: int = 128,
        threads: int = 16,
        verify_segments: int = 1,
        register: bool = True,
    ) -> RowStore: ...
    @property
    def report(self) -> dict[str, Any]: ...
    def gather(self, layer: int, ids: Buffer, out_weight: Buffer, out_scale: Buffer) -> None: ...
    def submit(self, layer: int, ids: Buffer, out_weight: Buffer, out_scale: Buffer) -> Job: ...
    def counters(self) -> dict[str, int]: ...
    def close(self) -> None: ...
    def __enter__(self) -> RowStore: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...
