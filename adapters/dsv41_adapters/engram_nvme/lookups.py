"""Ids to rows. Both ways do the same: submit when the ids exist, wait when a layer needs the rows, in chunks.

A layer has two stages of a fixed size, and a long prompt goes through them chunk by chunk: while one chunk is turned
into bf16, the next is read. So its whole row set is never in memory at once.
A chunk that could not be read is NaN, on every rank after the sum over ranks: `Failures` finds it there, so that all
ranks drop the same step without asking each other. Zeros or other rows would look like an answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers import engram as stock

if TYPE_CHECKING:
    from dsv41_rowstore import Job, RowStore

WEIGHT_BYTES, SCALE_BYTES = 256, 8


class Lookups(ABC):
    """One rank's lookups, all layers of it. One thread at a time: the one that runs the model."""

    def __init__(self, store: RowStore, layers: Sequence[int], *, chunk_rows: int) -> None:
        self.store = store
        self.layers = tuple(layers)
        self.chunk_rows = chunk_rows

    @abstractmethod
    def prefetch(self, ids: torch.Tensor) -> None:
        """Start reading the rows of a forward pass. Shapes: ids [tokens, layers, columns] int64."""

    @abstractmethod
    def fetch(self, layer: int, indices: torch.Tensor, out: torch.Tensor) -> None:
        """Put rows into `out` [n, 256] bf16; a chunk that could not be read is NaN, and its error is kept."""

    @abstractmethod
    def take_errors(self) -> list[Exception]:
        """Errors of lookups since the last time."""

    def chunks(self, n_rows: int) -> Iterator[tuple[int, int]]:
        for start in range(0, n_rows, self.chunk_rows):
            yield start, min(start + self.chunk_rows, n_rows)


class Ahead:
    """The ids that were submitted before a layer asked for them, and whether they are what it asks for."""

    def __init__(self, ids: torch.Tensor, layers: Sequence[int]) -> None:
        self._columns = {layer: ids[:, index] for index, layer in enumerate(layers)}

    def columns(self, layer: int) -> torch.Tensor:
        return self._columns[layer]

    def take(self, layer: int, indices: torch.Tensor) -> bool:
        """The same memory in the same shape: a copy, a slice or another pass's ids are looked up anew."""
        ours = self._columns.pop(layer, None)
        return (
            ours is not None
            and ours.data_ptr() == indices.data_ptr()
            and ours.shape == indices.shape
            and ours.stride() == indices.stride()
        )


class HostLookups(Lookups):
    """On a CPU: the row store's own submit and wait."""

    def __init__(
        self, store: RowStore, layers: Sequence[int], *, chunk_rows: int, prefetch: bool, timeout_s: float
    ) -> None:
        super().__init__(store, layers, chunk_rows=chunk_rows)
        self._prefetch = prefetch
        self._timeout_s = timeout_s
        self._ahead: Ahead | None = None
        self._reading: dict[int, _Reading] = {}
        self._errors: list[Exception] = []

    def prefetch(self, ids: torch.Tensor) -> None:
        if not self._prefetch or ids.numel() == 0:
            return
        self._drop()
        self._ahead = Ahead(ids, self.layers)
        for layer in self.layers:
            self._reading[layer] = self._start(layer, self._ahead.columns(layer))

    def fetch(self, layer: int, indices: torch.Tensor, out: torch.Tensor) -> None:
        reading = self._reading.pop(layer, None)
        if self._ahead is None or not self._ahead.take(layer, indices) or reading is None:
            if reading is not None:
                reading.cancel()
            reading = self._start(layer, indices)
        for start, stop in self.chunks(out.shape[0]):
            try:
                weight, scale = reading.next(self._timeout_s)
            except Exception as error:
                self._errors.append(error)
                out[start:stop] = torch.nan
            else:
                # The stock fallback's arithmetic, so that every bit is the same.
                values = weight.view(torch.float8_e4m3fn).float().unflatten(-1, (-1, stock.FP8_BLOCK_SIZE))
                values = (values * scale.view(torch.float8_e8m0fnu).float().unsqueeze(-1)).flatten(-2)
                out[start:stop] = values.to(torch.bfloat16)
            reading.submit()

    def take_errors(self) -> list[Exception]:
        errors, self._errors = self._errors, []
        return errors

    def _start(self, layer: int, indices: torch.Tensor) -> _Reading:
        ids = indices.reshape(-1).to(torch.int64).contiguous()
        reading = _Reading(self.store, layer, ids, list(self.chunks(ids.numel())))
        reading.submit()
        reading.submit()
        return reading

    def _drop(self) -> None:
        """A pass that ended early left lookups behind."""
        for reading in self._reading.values():
            reading.cancel()
        self._reading.clear()


class _Reading:
    """One layer's chunks in flight, two at most."""

    def __init__(self, store: RowStore, layer: int, ids: torch.Tensor, chunks: list[tuple[int, int]]) -> None:
        self._store, self._layer, self._ids, self._left = store, layer, ids, chunks
        self._flying: list[tuple[Job | Exception, torch.Tensor, torch.Tensor]] = []

    def submit(self) -> None:
        """Start the next chunk, if there is one; an error is raised where its rows are asked for."""
        if not self._left:
            return
        start, stop = self._left.pop(0)
        weight = torch.empty(stop - start, WEIGHT_BYTES, dtype=torch.uint8, device="cpu")
        scale = torch.empty(stop - start, SCALE_BYTES, dtype=torch.uint8, device="cpu")
        job: Job | Exception
        try:
            job = self._store.submit(self._layer, self._ids[start:stop].numpy(), weight.numpy(), scale.numpy())
        except Exception as error:
            job = error
        self._flying.append((job, weight, scale))

    def next(self, timeout_s: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises: RowStoreError with row, file and errno; TimeoutError."""
        job, weight, scale = self._flying.pop(0)
        if isinstance(job, Exception):
            raise job
        job.wait(timeout_s=timeout_s)
        return weight, scale

    def cancel(self) -> None:
        for job, _, _ in self._flying:
            if not isinstance(job, Exception):
                job.cancel()
        self._flying.clear()
        self._left.clear()
