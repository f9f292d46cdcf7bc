"""Lookups of a CUDA device: everything is put on streams, so that the same code is captured into a graph and replayed.

On a side stream: ids to the host, then the row store's C function starts the reads. On the model's stream: the C
function that waits for them, then SGLang's own gather kernel, which reads the pinned rows in place (a Spark's GPU
shares its memory with the CPU, so copying them first would only cost). No Python runs in a callback.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from dsv41_rowstore import HostCall
from sglang.kernels.ops.embeddings.engram_gather import engram_gather
from sglang.srt.layers import engram as stock

from .lookups import SCALE_BYTES, WEIGHT_BYTES, Ahead, Lookups

if TYPE_CHECKING:
    from dsv41_rowstore import RowStore

_FUNCTION = b"void (*)(void *)"


class StreamLookups(Lookups):
    """Rows through two pinned stages a layer.

    A stage is written again only after the stream that read it is past that: within a pass by events, between passes
    because each begins behind the model's stream, replayed graphs included (all run on the engine's forward stream).
    """

    def __init__(
        self, store: RowStore, layers: Sequence[int], *, chunk_rows: int, prefetch: bool, device: torch.device
    ) -> None:
        super().__init__(store, layers, chunk_rows=chunk_rows)
        self._prefetch = prefetch
        self._launch = HostFunctions()
        self._side = torch.cuda.Stream(device)
        self._order = torch.arange(chunk_rows, dtype=torch.int64, device=device)
        self._stages = {layer: (Stage(store, layer, chunk_rows), Stage(store, layer, chunk_rows)) for layer in layers}
        self._ahead: Ahead | None = None
        self._reading: dict[int, _Reading] = {}

    def prefetch(self, ids: torch.Tensor) -> None:
        # The pieces of a breakable graph hold the lookup, but not the hash, whose ids are copied elsewhere.
        if not self._prefetch or ids.numel() == 0 or stock.is_in_breakable_cuda_graph():
            return
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        self._drop()
        self._ahead = Ahead(ids, self.layers)
        with torch.cuda.stream(self._side):
            for layer in self.layers:
                self._reading[layer] = self._start(layer, self._ahead.columns(layer))

    def fetch(self, layer: int, indices: torch.Tensor, out: torch.Tensor) -> None:
        main = torch.cuda.current_stream()
        reading = self._reading.pop(layer, None)
        if self._ahead is None or not self._ahead.take(layer, indices) or reading is None:
            self._side.wait_stream(main)
            with torch.cuda.stream(self._side):
                if reading is not None:
                    reading.drain(self._launch, self._side)
                reading = self._start(layer, indices)
        for number, (start, stop) in enumerate(reading.chunks):
            call, stage = reading.flying.pop(0)
            main.wait_event(reading.submitted.pop(0))
            self._launch(main, call.wait, call.argument)
            n_rows = stop - start
            engram_gather(
                stage.weight.data_ptr(), stage.scale.data_ptr(), self._order[:n_rows], out[start:stop],
                WEIGHT_BYTES, stock.FP8_BLOCK_SIZE,
            )  # fmt: skip
            stage.read.record(main)
            if number + 2 < len(reading.chunks):
                self._side.wait_event(stage.read)
                with torch.cuda.stream(self._side):
                    self._submit(reading, number + 2)

    def take_errors(self) -> list[Exception]:
        stages = (stage for pair in self._stages.values() for stage in pair)
        return [error for stage in stages for call in stage.calls.values() if (error := call.take()) is not None]

    def _start(self, layer: int, indices: torch.Tensor) -> _Reading:
        """On the side stream, which is behind the ids: the first two chunks."""
        ids = indices.reshape(-1).to(torch.int64).contiguous()
        reading = _Reading(self._stages[layer], ids, list(self.chunks(ids.numel())))
        for number in range(min(2, len(reading.chunks))):
            self._submit(reading, number)
        return reading

    def _submit(self, reading: _Reading, number: int) -> None:
        start, stop = reading.chunks[number]
        stage = reading.stages[number % 2]
        stage.ids[: stop - start].copy_(reading.ids[start:stop], non_blocking=True)
        call = stage.call(stop - start)
        self._launch(self._side, call.submit, call.argument)
        submitted = torch.cuda.Event()
        submitted.record(self._side)
        reading.flying.append((call, stage))
        reading.submitted.append(submitted)

    def _drop(self) -> None:
        """A pass that ended early left lookups behind: their stages are free once those have come."""
        for reading in self._reading.values():
            reading.drain(self._launch, self._side)
        self._reading.clear()


class Stage:
    """Pinned memory of one chunk, and a C call for each number of rows that was asked for in it."""

    def __init__(self, store: RowStore, layer: int, n_rows: int) -> None:
        self._store, self._layer = store, layer
        self.ids = torch.zeros(n_rows, dtype=torch.int64, device="cpu", pin_memory=True)
        self.weight = torch.zeros(n_rows, WEIGHT_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)
        self.scale = torch.zeros(n_rows, SCALE_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)
        self.calls: dict[int, HostCall] = {}
        self.read = torch.cuda.Event()
        """The gather kernel is past this stage."""

    def call(self, n_rows: int) -> HostCall:
        """Kept for good: a captured graph holds its address."""
        found = self.calls.get(n_rows)
        if found is None:
            planes = (plane[:n_rows].numpy() for plane in (self.ids, self.weight, self.scale))
            found = self.calls[n_rows] = HostCall(self._store, self._layer, *planes)
        return found


class _Reading:
    """One layer's chunks in flight, two at most."""

    def __init__(self, stages: tuple[Stage, Stage], ids: torch.Tensor, chunks: list[tuple[int, int]]) -> None:
        self.stages, self.chunks = stages, chunks
        self.ids = ids  # read by the side stream until its last chunk is submitted
        self.flying: list[tuple[HostCall, Stage]] = []
        self.submitted: list[torch.cuda.Event] = []

    def drain(self, launch: HostFunctions, stream: torch.cuda.Stream) -> None:
        for call, _ in self.flying:
            launch(stream, call.wait, call.argument)
        self.flying.clear()
        self.submitted.clear()


class HostFunctions:
    """`cuLaunchHostFunc` of the driver that the process has loaded: what cudaLaunchHostFunc calls."""

    def __init__(self) -> None:
        self._launch = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
        self._launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._launch.restype = ctypes.c_int
        self._pointer = ctypes.pythonapi.PyCapsule_GetPointer
        self._pointer.restype, self._pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

    def __call__(self, stream: torch.cuda.Stream, function: object, argument: int) -> None:
        status = self._launch(stream.cuda_stream, self._pointer(function, _FUNCTION), argument)
        if status != 0:
            raise RuntimeError(f"engram_nvme: cuLaunchHostFunc gave {status}, so a lookup was not started.")
