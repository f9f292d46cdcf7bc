"""Declares `prefill_empty_cache`. Loaded by the supervisor too: standard library and pydantic only."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..adapter import Adapter, AdapterSettings, How, Role, Standing, Target


class PrefillEmptyCacheSettings(AdapterSettings):
    """From which length on a prompt's chunks give their memory back."""

    context_tokens: Annotated[int, Field(ge=1, le=1048576)] = Field(
        default=8192,
        description="After a prefill chunk that ends at or beyond this many tokens of its prompt, the allocator's "
        "cache is emptied. It costs a wait for the GPU in each such chunk; without it, reserved memory grows with the "
        "square of the prompt's length, since a freed smaller buffer never serves the next larger one.",
    )


ADAPTER = Adapter(
    name="prefill_empty_cache",
    changes="The allocator's cache is emptied after each chunk of a long prompt",
    targets=(
        Target(
            "sglang.srt.model_executor.model_runner:ModelRunner.forward",
            known={"e9c7745f6f7869a6": "0.5.23"},
            how=How.AFTER,
        ),
        Target(
            "sglang.srt.model_executor.forward_batch_info:ForwardMode",
            known={"4dd61e33ffe9088b": "0.5.23"},
            how=How.RELIES,
        ),
    ),
    settings=PrefillEmptyCacheSettings,
    engages="the first chunk of a prompt that is long enough",
    until="expandable segments work with this model on a GB10, or sglang bounds the indexer's buffer",
    credit="none: written for this project; the measurement and the switch are MiaAI-Lab's",
    standing=Standing.PORTED,
    same_output=True,
    processes=frozenset({Role.SCHEDULER}),
)
