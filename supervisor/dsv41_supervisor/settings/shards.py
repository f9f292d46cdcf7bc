"""What the model's sizes let a fleet be cut into. The same rules as shardChecks in modules/assertions.nix."""

from __future__ import annotations

from collections.abc import Iterator

# Source: config.json of DeepSeek-V4.1-Flash.
MOE_INTERMEDIATE_SIZE = 2304
O_GROUPS = 8
FP8_BLOCK = 32


def uncuttable(tp_size: int, ep_size: int, *, padded: bool) -> Iterator[str]:
    """Why the model cannot be cut so, one sentence each. `ep_size` divides `tp_size`; `padded`: tp_pad is on.

    Experts are not padded, since a shard's scales are for whole blocks (adapters/tp_pad/padding.py).
    """
    shards, blocks = tp_size // ep_size, MOE_INTERMEDIATE_SIZE // FP8_BLOCK
    if blocks % shards:
        fitting = ", ".join(str(n) for n in range(1, 9) if blocks % n == 0)
        yield (
            f"engine.parallelism.tp_size is {tp_size}, but {shards} shards of the experts' width "
            f"{MOE_INTERMEDIATE_SIZE} are not whole blocks of {FP8_BLOCK}: use {fitting} nodes"
        )
    if O_GROUPS % tp_size and not padded:
        yield (
            f"engine.parallelism.tp_size is {tp_size}, which does not divide the model's {O_GROUPS} groups of "
            "attention heads: set adapters.tp_pad to {}, which pads them"
        )
