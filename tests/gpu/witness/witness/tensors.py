"""For tests only: what each attention layer took and gave, and the last hidden states, of the model and of its draft.

One safetensors file a pass, named by its first position and its number of tokens. Eager passes only: a captured graph
runs no Python. Several ranks each write what they gave before the sum over ranks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def watch(folder: Path) -> None:
    """Register with SGLang's own registry, as an adapter would."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    folder.mkdir(parents=True, exist_ok=True)
    model, draft = "sglang.srt.models.deepseek_v4", "sglang.srt.models.deepseek_v4_dspark"
    of_model, of_draft = Tensors(folder, ""), Tensors(folder, "draft-")
    for target, hook in (
        (f"{model}.MQALayer.forward", of_model.attention),
        (f"{model}.DeepseekV4Model.forward", of_model.whole),
        (f"{draft}.DSparkAttention.forward", of_draft.draft_attention),
        (f"{draft}.DeepseekV4ForCausalLMDSpark._forward_impl", of_draft.whole),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)


class Tensors:
    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        self._kept: dict[str, Any] = {}

    def attention(self, original: Any, layer: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        return self._keep(layer, x, lambda: original(layer, x, *args, **kwargs))

    def draft_attention(self, original: Any, layer: Any, positions: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        return self._keep(layer, x, lambda: original(layer, positions, x, *args, **kwargs))

    def _keep(self, layer: Any, x: Any, attend: Any) -> Any:
        import torch

        if torch.cuda.is_current_stream_capturing():
            return attend()
        took = x.clone()  # the layer may write into it
        gave = attend()
        partial = getattr(gave, "partial", None)
        which = f"layers.{layer.layer_id}"
        self._kept[f"{which}.took"] = took.cpu()
        self._kept[f"{which}.gave" if partial is None else f"{which}.partial"] = (
            gave if partial is None else partial
        ).cpu()
        return gave

    def whole(self, original: Any, model: Any, input_ids: Any, positions: Any, *args: Any, **kwargs: Any) -> Any:
        import torch
        from safetensors.torch import save_file

        self._kept = {}
        result = original(model, input_ids, positions, *args, **kwargs)
        if len(positions) == 0 or torch.cuda.is_current_stream_capturing():
            return result
        hidden = getattr(result, "hidden_states", result)  # a draft's, or the model's: first of a tuple, or of two
        while isinstance(hidden, tuple):
            hidden = hidden[0]
        path = self._folder / f"{self._prefix}{int(positions[0])}-{len(positions)}.safetensors"
        staged = path.with_suffix(".tmp")
        kept = {"hidden": hidden.cpu(), **self._kept}
        save_file({name: tensor.contiguous() for name, tensor in kept.items()}, staged)
        os.replace(staged, path)
        return result
