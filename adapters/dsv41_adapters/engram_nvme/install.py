"""Puts the row store where SGLang's Engram tables stood. Imports torch and sglang: engine processes only."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from dsv41_rowstore import RowStore, RowStoreError, read_header, rows_path
from sglang.srt.environ import envs
from sglang.srt.layers import engram as stock

from .failures import Flags, StepFailures
from .lookups import HostLookups, Lookups
from .tables import without_table_files, without_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..activation import AdapterRun
    from .spec import EngramNvmeSettings

log = logging.getLogger(__name__)

_COUNTERS = {
    "engram_lookups": "lookups",
    "engram_rows_read": "owned_rows",
    "engram_device_reads": "device_reads",
    "engram_device_bytes": "device_bytes",
    "engram_failed_reads": "failed_reads",
    "engram_stream_waits": "call_waits",
    "engram_stream_wait_ns": "call_wait_ns",
}
_FAILED_STEPS = "engram_failed_steps"
_TABLE_VARIABLES = (
    "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE",
    "SGLANG_OPT_DSV41_ENGRAM_PEER_SHARDS",
    "SGLANG_OPT_DSV41_ENGRAM_HOST_STAGING",
)


def hooks(run: AdapterRun) -> dict[str, object]:
    """Hook by target, as `spec.py` declares them."""
    for name in _TABLE_VARIABLES:
        if getattr(envs, name).get():
            raise run.refuse(f"{name} says where the tables live, too. Unset it.", "conflict")
    loading, scheduler = "sglang.srt.model_loader", "sglang.srt.managers.scheduler:Scheduler"
    rows = RankRows(run)
    failures = StepFailures(rows)
    return {
        "sglang.srt.layers.engram:EngramEmbedding": embedding_class(rows),
        "sglang.srt.layers.engram:EngramHasher.forward": prefetching(rows),
        f"{scheduler}.run_batch": failures.run_batch,
        f"{scheduler}.process_batch_result": failures.process_batch_result,
        f"{loading}.loader:DefaultModelLoader._prepare_weights": without_table_files(run),
        f"{loading}.weight_utils:safetensors_weights_iterator": without_tables,
        f"{loading}.weight_utils:buffered_multi_thread_safetensors_weights_iterator": without_tables,
    }


class RankRows:
    """This rank's packed rows, one store for all Engram layers.

    Layers declare themselves while the model is built, so that a wrong file is refused before any weight is
    read; the store is opened when the weights are in.
    """

    def __init__(self, run: AdapterRun) -> None:
        self._run = run
        self._paths: dict[int, Path] = {}
        self._n_columns = 1
        self._counters = run.counters(*_COUNTERS, _FAILED_STEPS)
        self._n_failed_steps = 0
        self.lookups: Lookups | None = None
        self.flags: Flags | None = None
        """None until the store is open; what runs before that looks nothing up."""

    def declare(self, layer: int, *, n_rows: int, column_bounds: tuple[int, ...], rank: int, world_size: int) -> int:
        """How many of a layer's rows its file gives this rank. Raises AdapterRefused for another's file."""
        plan, rows = self._run.plan, self._run.rows
        self._n_columns = len(column_bounds) - 1
        if (rank, world_size) != (plan.rank, plan.world_size):
            raise self._run.refuse(
                f"the engine runs as rank {rank} of {world_size}, the plan says rank {plan.rank} of {plan.world_size}.",
                "rows",
            )
        parallel = stock.get_parallel()
        for what in ("attn_dp_size", "attn_cp_size"):
            if getattr(parallel, what, 1) > 1:
                raise self._run.refuse(
                    f"{what} is {getattr(parallel, what)}: ranks would not see each other's failed reads.", "conflict"
                )
        path = rows_path(rows.directory, layer, rank, world_size)
        try:
            header = read_header(path)
        except (RowStoreError, OSError) as error:
            raise self._run.refuse(f"{path}: {error}", "rows") from error
        head_sizes = tuple(stop - start for start, stop in zip(column_bounds, column_bounds[1:], strict=False))
        for what, got, expected in (
            ("layer", header.layer, layer),
            ("rank", header.rank, rank),
            ("world size", header.world_size, world_size),
            ("partition", str(header.partition), rows.partition),
            ("revision", header.revision, header.revision if rows.revision is None else rows.revision),
            ("table rows", header.table_rows, n_rows),
            ("head sizes", header.head_sizes, head_sizes),
        ):
            if got != expected:
                raise self._run.refuse(
                    f"{path} is for {what} {got}, this model has {expected}; run dsv41 pack on {plan.node}.",
                    "rows",
                )
        self._paths[layer] = path
        return header.n_rows

    def open(self, device: torch.device) -> Lookups:
        """Open the files when the weights are in. All layers are declared by then."""
        if self.lookups is not None:
            return self.lookups
        rows, layers = self._run.rows, sorted(self._paths)
        settings: EngramNvmeSettings = self._run.settings  # type: ignore[assignment]
        try:
            store = RowStore.open(
                self._paths,
                rank=self._run.plan.rank,
                world_size=self._run.plan.world_size,
                partition=rows.partition,
                revision=rows.revision,
                cache_bytes=rows.cache_bytes,
                ways=rows.ways,
                engine=rows.engine,
            )
        except (RowStoreError, OSError) as error:
            raise self._run.refuse(str(error), "rows") from error
        log.info("engram_nvme: rows of layers %s are read with %s", layers, store.report)
        chunk_rows = settings.staging_tokens * self._n_columns
        if device.type == "cuda":
            from .streams import StreamLookups

            self.lookups = StreamLookups(
                store, layers, chunk_rows=chunk_rows, prefetch=settings.prefetch, device=device
            )
        else:
            self.lookups = HostLookups(
                store, layers, chunk_rows=chunk_rows, prefetch=settings.prefetch, timeout_s=settings.lookup_timeout_s
            )
        self.flags = Flags(layers, device)
        return self.lookups

    def prefetch(self, ids: torch.Tensor) -> None:
        if self.lookups is not None:
            self.lookups.prefetch(ids)

    def fetch(self, layer: int, indices: torch.Tensor, out: torch.Tensor) -> None:
        self.open(indices.device).fetch(layer, indices, out)
        self._run.engaged()

    def checked(self, layer: int, values: torch.Tensor) -> torch.Tensor:
        """Rows after the sum over ranks. A step with a chunk that no rank could give is noted and dropped later."""
        if self.flags is None or values.numel() == 0:
            return values
        assert self.lookups is not None
        return self.flags.check(layer, values, chunk_rows=self.lookups.chunk_rows)

    def take_errors(self) -> list[Exception]:
        return [] if self.lookups is None else self.lookups.take_errors()

    def step_failed(self, reason: str) -> None:
        self._n_failed_steps += 1
        self._counters.set(_FAILED_STEPS, self._n_failed_steps)
        self._run.note(reason)

    def count(self) -> None:
        if self.lookups is not None:
            counted = self.lookups.store.counters()
            for name, key in _COUNTERS.items():
                self._counters.set(name, counted[key])


def prefetching(rows: RankRows) -> Callable[..., torch.Tensor]:
    """AROUND `EngramHasher.forward`: every layer's reads start as soon as the ids exist, before layer 0 computes."""

    def forward(original: Callable[..., torch.Tensor], hasher: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        ids = original(hasher, *args, **kwargs)
        rows.prefetch(ids)
        return ids

    return forward


def embedding_class(rows: RankRows) -> type[stock.EngramEmbedding]:
    """SGLang's class with its table taken out: lookup and reduction stay its own code."""

    class NvmeEngramEmbedding(stock.EngramEmbedding):
        """One layer's table on local NVMe. It has no parameter: nothing is allocated, nothing loaded."""

        def __init__(self, num_embeddings: int, dim: int, layer_id: int, column_bounds: tuple[int, ...]) -> None:
            torch.nn.Module.__init__(self)
            parallel = stock.get_parallel()
            self.dim = dim
            self.layer_id = layer_id
            self.tp_size = parallel.tp_size
            self.rows = rows.declare(
                layer_id,
                n_rows=num_embeddings,
                column_bounds=column_bounds,
                rank=parallel.tp_rank,
                world_size=parallel.tp_size,
            )
            self.host_table = None
            self.peer = None
            self.staged_by_scheduler = False
            self._built_on = torch.empty(0).device  # the model is built under its device

        def _load_rows(self, param: torch.nn.Parameter, loaded_weight: torch.Tensor) -> None:
            raise AssertionError(f"layer {self.layer_id}: an Engram table was read, although its rows are packed")

        def finish_load(self, label: str) -> None:
            rows.open(self._built_on)

        def forward(self, indices: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            return rows.checked(self.layer_id, super().forward(indices, *args, **kwargs))

        def _owned_rows(self, indices: torch.Tensor) -> torch.Tensor:
            """Zero where another rank owns the row; every bit is the stock lookup's."""
            out = self.new_rows(indices)
            if indices.numel() > 0:
                rows.fetch(self.layer_id, indices, out.view(-1, self.dim))
            return out

    return NvmeEngramEmbedding
