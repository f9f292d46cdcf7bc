"""What has to be padded for a world size, from the checkpoint's config alone. Pure; standard library only.

Attention heads come in groups (`o_groups`) that share an output projection. Groups of zero weights are appended until
ranks get equal numbers of whole groups: the softmax of a zero query is a mean of values, and the zero projection behind
it adds nothing, so the sum over ranks is what it was. A draft expert more than the checkpoint has is never chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

LOCAL_HEADS = (8, 16, 32, 48, 64, 80, 96, 112, 128)
"""Heads a rank may have. Source: head counts of the CAKE V4.1 attention kernels in flashinfer 0.7.2's wheel."""
FP8_BLOCK = 32
"""Rows and columns that share a scale; a rank's shard must consist of whole blocks."""
VOCAB_PADDING = 64
"""SGLang's own; it multiplies it by the world size where that does not divide. Source: sglang 0.5.23,
layers/vocab_parallel_embedding.py."""


class CannotPad(ValueError):
    """The world size cannot serve this model; `reasons` has a sentence for each obstacle."""

    def __init__(self, reasons: list[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(" ".join(reasons))


@dataclass(frozen=True, slots=True)
class Padded:
    """One quantity of the model, as the checkpoint has it and as the ranks share it."""

    name: str
    stored: int
    padded: int
    per_rank: int
    by: str
    """Who pads it: `tp_pad`, `sglang`, or nobody."""


@dataclass(frozen=True, slots=True)
class PaddingPlan:
    world_size: int
    ep_size: int
    quantities: tuple[Padded, ...]

    def __getitem__(self, name: str) -> Padded:
        return next(quantity for quantity in self.quantities if quantity.name == name)

    @property
    def needed(self) -> bool:
        """Whether the adapter has anything to do."""
        return any(q.by == "tp_pad" for q in self.quantities)

    @property
    def idle_ranks(self) -> tuple[int, ...]:
        """Ranks whose attention is padding alone."""
        groups = self["o_groups"]
        return tuple(r for r in range(self.world_size) if r * groups.per_rank >= groups.stored)


def padding_plan(config: Mapping[str, Any], world_size: int, ep_size: int = 1) -> PaddingPlan:
    """The plan for a model's config.json (text_config flattened or not).

    Raises: CannotPad with every obstacle; ValueError or KeyError when this is no such config.
    """
    text = {**config.get("text_config", {}), **config}
    heads, groups = _count(text, "num_attention_heads"), _count(text, "o_groups")
    reasons = []
    if world_size < 1:
        raise CannotPad([f"there is no fleet of {world_size} ranks."])
    if ep_size < 1 or world_size % ep_size:
        raise CannotPad([f"ep_size {ep_size} does not divide world size {world_size}."])
    if heads % groups:
        raise CannotPad([f"{heads} heads do not make {groups} equal groups: this is not V4.1's attention."])
    quantities = []

    def note(name: str, stored: int, padded: int, ranks: int, by: str) -> None:
        quantities.append(Padded(name, stored, padded, padded // ranks, by if padded != stored else "nobody"))

    padded_groups = _groups_for(groups, heads // groups, world_size)
    if padded_groups is None:
        most = LOCAL_HEADS[-1] * world_size
        reasons.append(
            f"no number of whole groups of {heads // groups} heads gives each of {world_size} ranks a head count that "
            f"the kernels have ({', '.join(map(str, LOCAL_HEADS))}), up to {most} heads."
        )
    else:
        note("num_attention_heads", heads, heads * padded_groups // groups, world_size, "tp_pad")
        note("o_groups", groups, padded_groups, world_size, "tp_pad")
    vocabulary = _count(text, "vocab_size")
    multiple = VOCAB_PADDING if _up(vocabulary, VOCAB_PADDING) % world_size == 0 else VOCAB_PADDING * world_size
    note("vocab_size", vocabulary, _up(vocabulary, multiple), world_size, "sglang")
    for name, size, ranks in (
        ("moe_intermediate_size", _count(text, "moe_intermediate_size"), world_size // ep_size),
        ("shared_intermediate_size", _shared_size(text), world_size),
    ):
        if size % (ranks * FP8_BLOCK):
            reasons.append(
                f"{name} {size} does not make {ranks} shards of whole blocks of {FP8_BLOCK}, and padding it is not "
                "done."
            )
        note(name, size, size, ranks, "nobody")
    experts = _count(text, "n_routed_experts")
    if experts % ep_size:
        reasons.append(f"n_routed_experts {experts} does not divide by ep_size {ep_size}, and padding it is not done.")
    note("n_routed_experts", experts, experts, ep_size, "nobody")
    if text.get("dspark_n_routed_experts"):
        drafts = _count(text, "dspark_n_routed_experts")
        note("dspark_n_routed_experts", drafts, _up(drafts, ep_size), ep_size, "tp_pad")
    if reasons:
        raise CannotPad(reasons)
    return PaddingPlan(world_size, ep_size, tuple(quantities))


def _groups_for(groups: int, heads_per_group: int, world_size: int) -> int | None:
    """The fewest groups that every rank gets equally, with a head count that there are kernels for."""
    local = ceil(groups / world_size)
    while local * heads_per_group <= LOCAL_HEADS[-1]:
        if local * heads_per_group in LOCAL_HEADS:
            return local * world_size
        local += 1
    return None


def _shared_size(text: Mapping[str, Any]) -> int:
    n_shared = _count(text, "n_shared_experts") if text.get("n_shared_experts") else 1
    return _count(text, "moe_intermediate_size") * n_shared


def _count(text: Mapping[str, Any], name: str) -> int:
    """A config with 0 heads, or half a one, is damaged: nothing can be said of it, and no search in it ends."""
    value = text[name]
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is {value!r}, which is no number of anything")
    return value


def _up(value: int, multiple: int) -> int:
    return ceil(value / multiple) * multiple
