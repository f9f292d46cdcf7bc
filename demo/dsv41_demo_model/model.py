"""A tiny Qwen3 trunk with SGLang's own Engram layers at its input and its output.

What is real here: `EngramHasher`, `Engram` and `EngramEmbedding` are SGLang's classes, driven by its
scheduler's history and its collectives, and the checkpoint's table tensors are named as the published one
names them. What is not: the trunk. V4.1's attention has no CPU backend. The Engram layers sit outside the
trunk because between its layers a tensor-parallel rank holds hidden states that are not summed yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from sglang.srt.layers.engram import Engram, EngramHasher, EngramLayout
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.models.qwen3 import Qwen3ForCausalLM
from torch import nn

_ENGRAM_TENSOR = re.compile(r"layers\.(\d+)\.engram\.(.+)")


class Dsv41DemoForCausalLM(Qwen3ForCausalLM):
    def __init__(self, config, quant_config=None, prefix: str = "") -> None:
        super().__init__(config, quant_config, prefix)
        layout = EngramLayout.from_config(config)
        self.engram_hasher = EngramHasher.from_config(config, layout)
        self.engrams = nn.ModuleDict(
            {str(layer): Engram(config, layer, layout) for layer in layout.layer_ids}
        )

    @torch.no_grad()
    def forward(self, input_ids, positions, forward_batch, input_embeds=None, **_unused):
        hash_ids = self.engram_hasher(input_ids, forward_batch)
        first, last = self.engrams.values()
        x = self.model.embed_tokens(input_ids) if input_embeds is None else input_embeds
        x = self._add_engram(first, x, hash_ids, input_ids, forward_batch)
        x = self.model(input_ids, positions, forward_batch, x)
        x = self._add_engram(last, x, hash_ids, input_ids, forward_batch)
        return self.logits_processor(input_ids, x, self.lm_head, forward_batch)

    @staticmethod
    def _add_engram(engram: Engram, x, hash_ids, input_ids, forward_batch):
        """One residual copy instead of the real model's four (hc_mult 1)."""
        ids = hash_ids[:, engram.layer_hash_index]
        return engram(x.unsqueeze(1), ids, forward_batch, input_ids=input_ids).squeeze(1)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """As the real model does: a tensor nobody has a parameter for is an error, not a shrug."""
        parameters = dict(self.engrams.named_parameters())
        missing = set(parameters)
        rest = []
        for name, tensor in weights:
            match = _ENGRAM_TENSOR.fullmatch(name)
            if match is None:
                rest.append((name, tensor))
                continue
            key = f"{match[1]}.{match[2]}"
            parameter = parameters[key]
            getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)
            missing.discard(key)
        if missing:
            raise ValueError(f"the checkpoint has no tensors for Engram parameters {sorted(missing)}")
        super().load_weights(rest)
        for layer, engram in self.engrams.items():
            engram.embed.finish_load(label=f"layer {layer}")


EntryClass = [Dsv41DemoForCausalLM]
