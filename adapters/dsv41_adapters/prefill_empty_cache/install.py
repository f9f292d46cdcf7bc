"""Empties the cache when a long chunk is through the model. Imports sglang: scheduler processes only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang.srt.platforms import current_platform

if TYPE_CHECKING:
    from ..activation import AdapterRun
    from .spec import PrefillEmptyCacheSettings


def hooks(run: AdapterRun) -> dict[str, object]:
    """Hook by target, as `spec.py` declares them."""
    return {"sglang.srt.model_executor.model_runner:ModelRunner.forward": empties_cache(run)}


def empties_cache(run: AdapterRun) -> Callable[..., Any]:
    """AFTER `ModelRunner.forward`, when the chunk's buffers are free again; verify steps are no prefill."""
    settings: PrefillEmptyCacheSettings = run.settings  # type: ignore[assignment]
    counters = run.counters("long_chunks")
    n_chunks = 0

    def after(result: Any, runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal n_chunks
        # None leaves the result as it is. The draft goes over the same chunk with small buffers of its own.
        if runner.is_draft_worker or not forward_batch.forward_mode.is_extend_without_speculative():
            return None
        prefixes, chunks = forward_batch.extend_prefix_lens_cpu, forward_batch.extend_seq_lens_cpu
        if prefixes is None or chunks is None:  # a dummy of the autotuner or of graph capture
            return None
        if max(map(sum, zip(prefixes, chunks, strict=True)), default=0) >= settings.context_tokens:
            run.engaged()
            # Blocks that the stream still uses go when the GPU is done with them: freeing waits for it.
            current_platform.empty_cache()
            n_chunks += 1
            counters.set("long_chunks", n_chunks)
        return None

    return after
