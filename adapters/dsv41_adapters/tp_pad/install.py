"""Pads the config when it is read and the tensors when they are loaded. Imports torch and sglang."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .padding import CannotPad, padding_plan

if TYPE_CHECKING:
    from ..activation import AdapterRun
    from .spec import TpPadSettings

log = logging.getLogger(__name__)

_MODELS = "sglang.srt.models"
_ATTENTION = re.compile(
    r"(?:^|\.)(?:layers|mtp|stages)\.\d+\.(?:attn|self_attn)\.(attn_sink|wq_b|wo_a|wo_b)"
    r"(?:\.(?:weight|scale|weight_scale_inv))?$"
)
_DRAFT_GATE = re.compile(r"(?:^|\.)(?:mtp|stages)\.\d+\.(?:ffn|mlp)\.gate\.(weight|bias|e_score_correction_bias)$")
_PADDED_DIM = {"attn_sink": 0, "wq_b": 0, "wo_a": 0, "wo_b": 1}
"""The dimension that heads or groups run along: outputs of wq_b and wo_a, inputs of wo_b."""
_SCALES = (".scale", ".weight_scale_inv")
NEVER = -1e30
"""Score correction of an expert that must not be chosen; finite, so that no kernel makes a NaN of it."""


def hooks(run: AdapterRun) -> dict[str, object]:
    """Hook by target, as `spec.py` declares them."""
    return {
        "sglang.srt.configs.deepseek_v41:DeepseekV41Config.__init__": pads_config(run),
        f"{_MODELS}.deepseek_v4:DeepseekV4ForCausalLM.load_weights": pads_weights,
        f"{_MODELS}.deepseek_v4_dspark:DeepseekV4ForCausalLMDSpark.load_weights": pads_weights,
        f"{_MODELS}.deepseek_v4_dspark:_dspark_stage_config": pads_draft_experts,
    }


def pads_config(run: AdapterRun) -> Callable[..., None]:
    """AFTER `DeepseekV41Config.__init__`. Idempotent: a config made from a padded one is padded already."""
    settings: TpPadSettings = run.settings  # type: ignore[assignment]

    def after(result: None, config: Any, *args: Any, **kwargs: Any) -> None:
        # transformers makes empty configs to compare with; they describe no model.
        if getattr(config, "o_groups", None) is None or not getattr(config, "num_attention_heads", None):
            return result
        run.engaged()
        heads, groups = config.num_attention_heads, config.o_groups
        if settings.force_groups is not None:
            padded_groups = max(groups, settings.force_groups)
        else:
            try:
                # Experts are counted when the parallel layout is known: pads_draft_experts.
                plan = padding_plan(vars(config), run.plan.world_size)
            except CannotPad as refusal:
                raise run.refuse(f"world size {run.plan.world_size}: {refusal}", "world") from None
            except (ValueError, KeyError) as problem:
                raise run.refuse(f"the checkpoint's config is not DeepSeek-V4.1's ({problem}).") from None
            padded_groups = plan["o_groups"].padded
        if padded_groups != groups:
            config.num_attention_heads, config.o_groups = heads // groups * padded_groups, padded_groups
            log.info(
                "tp_pad: %d heads in %d groups become %d in %d for %d ranks",
                heads, groups, config.num_attention_heads, padded_groups, run.plan.world_size,
            )  # fmt: skip
        return result

    return after


def pads_draft_experts(stage_config: Any, config: Any) -> Any:
    """AFTER `_dspark_stage_config`: the draft's experts divide by the expert-parallel degree."""
    from sglang.srt.runtime_context import get_parallel

    ep_size = get_parallel().moe_ep_size
    if stage_config is config or stage_config.n_routed_experts % ep_size == 0:
        return stage_config
    stage_config.n_routed_experts += ep_size - stage_config.n_routed_experts % ep_size
    return stage_config


def pads_weights(original: Callable[..., Any], model: Any, weights: Iterable[tuple[str, torch.Tensor]], *args: Any,
                 **kwargs: Any) -> Any:  # fmt: skip
    """AROUND `load_weights` of the model and of its draft."""
    return original(model, padded(weights, model.config, draft_experts(model)), *args, **kwargs)


def draft_experts(model: Any) -> int | None:
    """Experts of the draft as its stages were built; None for the model itself."""
    stages = getattr(model, "stages", None)
    if not stages:
        return None
    from sglang.srt.models import deepseek_v4_dspark

    return int(deepseek_v4_dspark._dspark_stage_config(model.config).n_routed_experts)


def padded(
    weights: Iterable[tuple[str, torch.Tensor]], config: Any, n_draft_experts: int | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, those that heads, groups or draft experts run along made as long as the config now says."""
    for name, tensor in weights:
        if match := _ATTENTION.search(name):
            scale = name.endswith(_SCALES)
            # A scale of zero is no power of two, which MXFP8 rejects; 1.0 times a block of zeros is zero too.
            yield name, extended(tensor, _PADDED_DIM[match[1]], _length(match[1], scale, config), 1.0 if scale else 0.0)
        elif n_draft_experts is not None and (match := _DRAFT_GATE.search(name)):
            fill = 0.0 if match[1] == "weight" else NEVER
            yield name, extended(tensor, 0, n_draft_experts, fill)
        else:
            yield name, tensor


def _length(which: str, scale: bool, config: Any) -> int:
    """Length of the padded dimension: rows of a weight, or blocks of its scale."""
    if which == "attn_sink":
        return config.num_attention_heads
    length = config.num_attention_heads * config.head_dim if which == "wq_b" else config.o_groups * config.o_lora_rank
    if not scale:
        return length
    rows, columns = config.quantization_config["weight_block_size"]
    return length // (columns if which == "wo_b" else rows)


def extended(tensor: torch.Tensor, dim: int, wanted: int, fill: float) -> torch.Tensor:
    """The tensor with `fill` behind it along `dim`; itself when it is long enough."""
    stored = tensor.shape[dim]
    if stored >= wanted:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = wanted
    if tensor.element_size() == 1:  # fp8 types have no arithmetic on every device: write their bytes
        code = torch.full((1,), fill, dtype=torch.float32).to(tensor.dtype).view(torch.uint8).item()
        longer = torch.full(shape, code, dtype=torch.uint8, device=tensor.device)
        longer.narrow(dim, 0, stored).copy_(tensor.view(torch.uint8))
        return longer.view(tensor.dtype)
    longer = torch.full(shape, fill, dtype=tensor.dtype, device=tensor.device)
    longer.narrow(dim, 0, stored).copy_(tensor)
    return longer
