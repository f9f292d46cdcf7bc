"""Puts the row store where SGLang's Engram tables stood. Imports torch and sglang: engine processes only."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from dsv41_rowstore import RowStore, RowStoreError, read_header, rows_path
from sglang.srt.environ import envs
from sglang.srt.layers import engram as stock

from .tables import without_table_files, without_tables

if TYPE_CHECKING:
    from ..activation import AdapterRun
    from .spec import EngramNvmeSettings

log = logging.getLogger(__name__)

_COUNTERS = {
    "engram_lookups": "lookups",
    "engram_rows_read": "owned_rows",
    "engram_device_reads": "device_reads",
    "engram_device_bytes": "device_bytes",
}
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
    loading = "sglang.srt.model_loader"
    return {
        "sglang.srt.layers.engram:EngramEmbedding": embedding_class(RankRows(run)),
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
        self._store: RowStore | None = None
        self._counters = run.counters(*_COUNTERS)
        settings: EngramNvmeSettings = run.settings  # type: ignore[assignment]
        self._timeout_s = settings.lookup_timeout_s

    def declare(self, layer: int, *, n_rows: int, column_bounds: tuple[int, ...], rank: int, world_size: int) -> int:
        """How many of a layer's rows its file gives this rank. Raises AdapterRefused for another's file."""
        plan, rows = self._run.plan, self._run.rows
        if (rank, world_size) != (plan.rank, plan.world_size):
            raise self._run.refuse(
                f"the engine runs as rank {rank} of {world_size}, the plan says rank {plan.rank} of {plan.world_size}.",
                "rows",
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

    def open(self) -> RowStore:
        if self._store is None:
            rows = self._run.rows
            try:
                self._store = RowStore.open(
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
            log.info("engram_nvme: rows of layers %s are read with %s", sorted(self._paths), self._store.report)
        return self._store

    def read(self, layer: int, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Raw bytes of these rows, zero where another rank owns them.

        Shapes: ids [n] int64 on the CPU; gives [n, 256] and [n, 8] uint8.
        Raises: RowStoreError with row, file and errno; the step fails. No row is zeros because a read failed.
        """
        store = self.open()
        weight = torch.empty(ids.numel(), 256, dtype=torch.uint8)
        scale = torch.empty(ids.numel(), 8, dtype=torch.uint8)
        try:
            store.submit(layer, ids.numpy(), weight.numpy(), scale.numpy()).wait(timeout_s=self._timeout_s)
        except Exception as error:
            self._run.note(f"a lookup in layer {layer} failed: {error}")
            raise
        self._run.engaged()
        counted = store.counters()
        for name, key in _COUNTERS.items():
            self._counters.set(name, counted[key])
        return weight, scale


def embedding_class(rows: RankRows) -> type[stock.EngramEmbedding]:
    """SGLang's class with its table taken out: lookup, reduction and data parallelism stay its own code."""

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

        def _load_rows(self, param: torch.nn.Parameter, loaded_weight: torch.Tensor) -> None:
            raise AssertionError(f"layer {self.layer_id}: an Engram table was read, although its rows are packed")

        def finish_load(self, label: str) -> None:
            rows.open()

        def _owned_rows(self, indices: torch.Tensor) -> torch.Tensor:
            """The arithmetic is the stock fallback's, so that every bit is the same; so are the zeros."""
            if indices.is_cuda and torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    "engram_nvme cannot be captured into a CUDA graph yet. Start the rank with --disable-cuda-graph."
                )
            ids = indices.reshape(-1).to("cpu", torch.int64).contiguous()
            if ids.numel() == 0:
                return self.new_rows(indices)
            weight, scale = (plane.to(indices.device) for plane in rows.read(self.layer_id, ids))
            values = weight.view(torch.float8_e4m3fn).float().unflatten(-1, (-1, stock.FP8_BLOCK_SIZE))
            values = (values * scale.view(torch.float8_e8m0fnu).float().unsqueeze(-1)).flatten(-2)
            return values.to(torch.bfloat16).view(*indices.shape, self.dim)

    return NvmeEngramEmbedding
