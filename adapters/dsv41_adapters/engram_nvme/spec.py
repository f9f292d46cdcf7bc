"""Declares `engram_nvme`. Loaded by the supervisor too: standard library and pydantic only."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..adapter import Adapter, AdapterSettings, How, Role, Standing, Target


class EngramNvmeSettings(AdapterSettings):
    """Where the rows are and how they are cached is `pack`'s; this is what the engine does with them."""

    lookup_timeout_s: Annotated[float, Field(gt=0, le=600)] = Field(
        default=30.0,
        description="Seconds one lookup may take before the step fails, where the model runs on a CPU. On a GPU a "
        "stream waits, and the kernel's own NVMe timeout (nvme_core.io_timeout, 30 s) ends a read that hangs. Too "
        "small a value fails requests on a disk that is merely busy.",
    )
    staging_tokens: Annotated[int, Field(ge=1, le=65536)] = Field(
        default=1024,
        description="Tokens whose rows are staged at once; a longer prompt goes through in chunks. Each layer has two "
        "stages of 6,336 bytes a token, so 1024 tokens take 26 MB of pinned memory for two layers.",
    )
    prefetch: bool = Field(
        default=True,
        description="Start every layer's reads when the ids exist, before the first layer computes. Off only to "
        "measure what it hides.",
    )


ADAPTER = Adapter(
    name="engram_nvme",
    changes="Engram rows come from this rank's packed files; the checkpoint's tables are never read",
    targets=(
        Target(
            "sglang.srt.layers.engram:EngramEmbedding",
            known={"728ce59fd5b331fb": "0.5.23"},
            how=How.REPLACE,
        ),
        Target("sglang.srt.layers.engram:EngramHasher.forward", known={"8815e42a27f71961": "0.5.23"}, how=How.AROUND),
        Target(
            "sglang.srt.managers.scheduler:Scheduler.run_batch", known={"30a62de5b388e5cc": "0.5.23"}, how=How.AROUND
        ),
        Target(
            "sglang.srt.managers.scheduler:Scheduler.process_batch_result",
            known={"520d0d9addc2fd7f": "0.5.23"},
            how=How.AROUND,
        ),
        Target(
            "sglang.srt.managers.scheduler:Scheduler.process_pending_chunked_abort",
            known={"5248871a0a9c944b": "0.5.23"},
            how=How.RELIES,
        ),
        Target(
            "sglang.srt.managers.scheduler_components.batch_result_processor:"
            "SchedulerBatchResultProcessor.process_batch_result_prefill",
            known={"6727a7e1c42c0b38": "0.5.23"},
            how=How.RELIES,
        ),
        Target(
            "sglang.srt.managers.scheduler_components.batch_result_processor:"
            "SchedulerBatchResultProcessor.process_batch_result_decode",
            known={"b6914c283a78c8f6": "0.5.23"},
            how=How.RELIES,
        ),
        Target("sglang.srt.mem_cache.common:release_kv_cache", known={"a14de0eae228282b": "0.5.23"}, how=How.RELIES),
        Target("sglang.srt.mem_cache.common:checkpoint_kv_cache", known={"71c1d619d614954f": "0.5.23"}, how=How.RELIES),
        Target(
            "sglang.kernels.ops.embeddings.engram_gather:engram_gather",
            known={"0d960d665d732de5": "0.5.23"},
            how=How.RELIES,
        ),
        Target(
            "sglang.srt.model_loader.loader:DefaultModelLoader._prepare_weights",
            known={"11d15235bbbc8cc5": "0.5.23"},
            how=How.AROUND,
        ),
        Target(
            "sglang.srt.model_loader.weight_utils:safetensors_weights_iterator",
            known={"ed69f8a5b40b2e19": "0.5.23"},
            how=How.AROUND,
        ),
        Target(
            "sglang.srt.model_loader.weight_utils:buffered_multi_thread_safetensors_weights_iterator",
            known={"e8a12db63d262ad1": "0.5.23"},
            how=How.AROUND,
        ),
        Target(
            "sglang.srt.model_loader.loader:DefaultModelLoader._get_weights_iterator",
            known={"345364eec5122cd0": "0.5.23"},
            how=How.RELIES,
        ),
        Target("sglang.srt.layers.engram:Engram", known={"7375c1e362e162f6": "0.5.23"}, how=How.RELIES),
    ),
    settings=EngramNvmeSettings,
    engages="the first lookup of a forward pass: the server's own warm-up request",
    until="sglang reads Engram rows from local files itself",
    credit="none: written for this project",
    standing=Standing.VERIFIED,
    same_output=True,
    processes=frozenset({Role.SCHEDULER}),
    needs_rows=True,
)
