"""Declares `engram_nvme`. Loaded by the supervisor too: standard library and pydantic only."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..adapter import Adapter, AdapterSettings, How, Role, Standing, Target


class EngramNvmeSettings(AdapterSettings):
    """Where the rows are and how they are cached is `pack`'s; this is what the engine does with them."""

    lookup_timeout_s: Annotated[float, Field(gt=0, le=600)] = Field(
        default=30.0,
        description="Seconds one lookup may take before the step fails. A healthy NVMe needs milliseconds; "
        "too small a value fails requests on a disk that is merely busy.",
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
