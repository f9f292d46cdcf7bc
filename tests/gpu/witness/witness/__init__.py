"""A plugin for tests only: beside every lookup, eager or captured, the same rows out of the checkpoint's own tables.

It stands around `Engram.embed_rows`, which no adapter of ours touches, holds the tables on the GPU, and counts on the
device how many rows were looked up and how many differ in any bit, by layer and by what the forward pass was for. What
it counted goes to pinned memory in stream order, so that replayed graphs count too, and from there to $DSV41_WITNESS.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

MODES = ("prefill", "decode", "verify")


def register() -> None:
    """SGLang calls this in every process; the hook only runs where a model does."""
    if folder := os.environ.get("DSV41_WITNESS_TENSORS"):
        from .tensors import watch

        watch(Path(folder))
    if "DSV41_WITNESS" not in os.environ:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    witness = Witness(Path(os.environ["DSV41_WITNESS"]), Path(os.environ["DSV41_WITNESS_TABLES"]))
    HookRegistry.register("sglang.srt.layers.engram.Engram.embed_rows", witness.embed_rows, HookType.AROUND)


class Witness:
    def __init__(self, report: Path, tables: Path) -> None:
        self._report, self._folder = report, tables
        self._tables: dict[int, Any] = {}

    def embed_rows(self, original: Any, engram: Any, hash_ids: Any, forward_batch: Any, cp_all_tokens: bool) -> Any:
        import torch
        from sglang.kernels.ops.embeddings.engram_gather import engram_gather

        got = original(engram, hash_ids, forward_batch, cp_all_tokens)
        if got.numel() == 0:
            return got
        index = engram.layer_hash_index
        if index not in self._tables:  # in the warm-up before the first capture
            self._load(engram.embed.layer_id, index, got.device)
        weight, scale = self._tables[index]
        expected = torch.empty_like(got)
        ids = hash_ids.reshape(-1).contiguous()
        engram_gather(weight.data_ptr(), scale.data_ptr(), ids, expected.view(-1, 256), 256, 32)
        if engram.embed.tp_size > 1:
            expected.add_(0.0)  # a sum over ranks, stock or not, adds zeros to each row: -0 becomes +0
        differ = (got.view(torch.int16) != expected.view(torch.int16)).any(-1).sum()
        mode = forward_batch.forward_mode
        which = 1 if mode.is_decode() else 2 if mode.is_target_verify() else 0
        self._counts[index, which, 0] += ids.numel()
        self._counts[index, which, 1] += differ
        self._host_counts.copy_(self._counts, non_blocking=True)
        if which == 0:
            self._first[index].copy_(hash_ids[0])
            self._host_first.copy_(self._first, non_blocking=True)
        return got

    def _load(self, layer: int, index: int, device: Any) -> None:
        import torch
        from safetensors.torch import load_file

        planes = load_file(self._folder / f"tables-l{layer}.safetensors")
        prefix = f"layers.{layer}.engram.embed."
        self._tables[index] = tuple(
            planes[f"{prefix}{plane}"].view(torch.uint8).contiguous().to(device) for plane in ("weight", "scale")
        )
        if len(self._tables) == 1:
            self._counts = torch.zeros(2, len(MODES), 2, dtype=torch.int64, device=device)
            self._first = torch.zeros(2, 24, dtype=torch.int64, device=device)
            self._host_counts = torch.zeros(2, len(MODES), 2, dtype=torch.int64, device="cpu", pin_memory=True)
            self._host_first = torch.zeros(2, 24, dtype=torch.int64, device="cpu", pin_memory=True)
            threading.Thread(target=self._write, daemon=True).start()

    def _write(self) -> None:
        """Reads pinned memory only: a CUDA call of another thread would break a capture."""
        counts, first = self._host_counts.numpy(), self._host_first.numpy()
        staged = self._report.with_suffix(".tmp")
        while True:
            staged.write_text(
                json.dumps(
                    {
                        "counts": [
                            {mode: counts[layer, m].tolist() for m, mode in enumerate(MODES)} for layer in range(2)
                        ],
                        "first": first.tolist(),
                    }
                )
            )
            os.replace(staged, self._report)
            time.sleep(0.05)
