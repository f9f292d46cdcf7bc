"""A tiny DeepSeek-V4.1 checkpoint of random weights: the published tensor names and the real widths, but few layers.

    make_checkpoint.py TARGET [CONFIG_FOLDER]

5.2 GiB with the configuration in `tiny/`; 6 s on an H200, a minute or more on a CPU. The scales keep activations finite
through all layers. Equal seeds give equal files on one kind of device.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent / "tiny"
BLOCK = 32
_SEED = 1234


class Writer:
    """Random tensors by name, in the checkpoint's formats, written file by file."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._random = torch.Generator(device=self._device)
        self._random.manual_seed(_SEED)
        self._tensors: dict[str, torch.Tensor] = {}
        self.weight_map: dict[str, str] = {}

    def put(self, name: str, tensor: torch.Tensor) -> None:
        self._tensors[name] = tensor.cpu().contiguous()

    def normal(self, *shape: int, std: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return (torch.randn(*shape, generator=self._random, device=self._device) * std).to(dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self._random, device=self._device, dtype=dtype)

    def ones(self, n: int) -> torch.Tensor:
        return torch.ones(n, device=self._device)

    def norm(self, name: str, *shape: int) -> None:
        self.put(name, 1 + self.normal(*shape, std=0.05))

    def fp8(self, name: str, n_out: int, n_in: int) -> None:
        """e4m3 with one E8M0 scale for 32x32 weights."""
        weight = (torch.randn(n_out, n_in, generator=self._random, device=self._device) * 64).clamp(-440, 440)
        exponent = round(math.log2(n_in**-0.5 / 64)) + 127
        blocks = (n_out // BLOCK, n_in // BLOCK)
        scale = torch.full(blocks, exponent, dtype=torch.uint8, device=self._device)
        scale = scale + self.integers(0, 2, *blocks, dtype=torch.uint8)
        self.put(f"{name}.weight", weight.to(torch.float8_e4m3fn))
        self.put(f"{name}.scale", scale.view(torch.float8_e8m0fnu))

    def fp4(self, name: str, n_out: int, n_in: int) -> None:
        """Two e2m1 in a byte, one E8M0 scale for 32 of them."""
        weight = self.integers(-128, 128, n_out, n_in // 2, dtype=torch.int8)
        exponent = round(math.log2(n_in**-0.5 / 2.9)) + 127
        scale = torch.full((n_out, n_in // BLOCK), exponent, dtype=torch.uint8, device=self._device)
        self.put(f"{name}.weight", weight)
        self.put(f"{name}.scale", scale.view(torch.float8_e8m0fnu))

    def flush(self, file: str) -> None:
        save_file(self._tensors, self._target / file)
        self.weight_map |= dict.fromkeys(self._tensors, file)
        self._tensors.clear()


def attention(w: Writer, prefix: str, c: dict[str, Any], layer: int) -> None:
    hidden, heads, head_dim = c["hidden_size"], c["num_attention_heads"], c["head_dim"]
    p = f"{prefix}attn."
    w.fp8(f"{p}wq_a", c["q_lora_rank"], hidden)
    w.fp8(f"{p}wq_b", heads * head_dim, c["q_lora_rank"])
    w.fp8(f"{p}wkv", head_dim, hidden)
    w.fp8(f"{p}wo_a", c["o_groups"] * c["o_lora_rank"], heads * head_dim // c["o_groups"])
    w.fp8(f"{p}wo_b", hidden, c["o_groups"] * c["o_lora_rank"])
    w.norm(f"{p}q_norm.weight", c["q_lora_rank"])
    w.norm(f"{p}kv_norm.weight", head_dim)
    w.put(f"{p}attn_sink", w.normal(heads, std=0.5, dtype=torch.float32))
    if layer in c["kv_source_layer_ids"]:
        w.put(f"{p}compressor.wkv.weight", w.normal(head_dim, hidden, std=hidden**-0.5))
        w.norm(f"{p}compressor.norm.weight", head_dim)
        if c["compress_ratios"][layer] > 1:
            w.put(f"{p}compressor.wgate.weight", w.normal(head_dim, hidden, std=hidden**-0.5))
    if layer in c["index_source_layer_ids"]:
        dim = c["index_head_dim"]
        w.fp8(f"{p}indexer.wq_b", c["index_n_heads"] * dim, c["q_lora_rank"])
        w.put(f"{p}indexer.weights_proj.weight", w.normal(c["index_n_heads"], hidden, std=hidden**-0.5))
        if layer in c["kv_source_layer_ids"]:
            w.put(f"{p}indexer.wk.weight", w.normal(dim, head_dim, std=head_dim**-0.5))
            w.norm(f"{p}indexer.k_norm.weight", dim)


def block(w: Writer, prefix: str, c: dict[str, Any], *, n_experts: int, layer: int = -1) -> None:
    hidden, inner, copies = c["hidden_size"], c["moe_intermediate_size"], c["hc_mult"]
    w.norm(f"{prefix}attn_norm.weight", hidden)
    w.norm(f"{prefix}ffn_norm.weight", hidden)
    attention(w, prefix, c, layer)
    w.put(f"{prefix}ffn.gate.weight", w.normal(n_experts, hidden, std=hidden**-0.5))
    w.put(f"{prefix}ffn.gate.bias", w.normal(n_experts, std=0.01, dtype=torch.float32))
    for expert in range(n_experts):
        for name, n_out, n_in in (("w1", inner, hidden), ("w3", inner, hidden), ("w2", hidden, inner)):
            w.fp4(f"{prefix}ffn.experts.{expert}.{name}", n_out, n_in)
    for name, n_out, n_in in (("w1", inner, hidden), ("w3", inner, hidden), ("w2", hidden, inner)):
        w.fp8(f"{prefix}ffn.shared_experts.{name}", n_out, n_in)
    for part in ("attn", "ffn"):
        n_mixed, n_wide = (2 + copies) * copies, copies * hidden
        w.put(f"{prefix}hc_{part}_fn", w.normal(n_mixed, n_wide, std=n_wide**-0.5, dtype=torch.float32))
        w.put(f"{prefix}hc_{part}_base", w.normal(n_mixed, std=0.1, dtype=torch.float32))
        w.put(f"{prefix}hc_{part}_scale", w.ones(3))


def engram(w: Writer, prefix: str, c: dict[str, Any], *, n_rows: int) -> None:
    hidden, copies, dim = c["hidden_size"], c["hc_mult"], c["engram_head_dim"]
    n_columns = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"]
    p = f"{prefix}engram."
    w.put(f"{p}embed.weight", w.normal(n_rows, dim, std=64, dtype=torch.float8_e4m3fn))
    scale = w.integers(119, 124, n_rows, dim // BLOCK, dtype=torch.uint8)
    w.put(f"{p}embed.scale", scale.view(torch.float8_e8m0fnu))
    w.fp8(f"{p}wkv", hidden * (copies + 1), n_columns * dim)
    w.norm(f"{p}q_weight", copies, hidden)
    w.norm(f"{p}k_weight", copies, hidden)


def draft(w: Writer, stage: int, c: dict[str, Any]) -> None:
    hidden, vocab, rank = c["hidden_size"], c["vocab_size"], c["dspark_markov_rank"]
    prefix = f"mtp.{stage}."
    block(w, prefix, c, n_experts=c["dspark_n_routed_experts"])
    if stage == 0:
        w.fp8(f"{prefix}main_proj", hidden, hidden * len(c["dspark_target_layer_ids"]))
        w.norm(f"{prefix}main_norm.weight", hidden)
    if stage == c["num_nextn_predict_layers"] - 1:
        w.norm(f"{prefix}norm.weight", hidden)
        w.put(f"{prefix}markov_head.embed.weight", w.normal(vocab, rank))
        w.put(f"{prefix}markov_head.head.weight", w.normal(vocab, rank, std=0.05))
        w.put(f"{prefix}confidence_head.proj.weight", w.normal(1, hidden + rank, std=0.01))


def make(target: Path, source: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    c = json.loads((source / "config.json").read_text())["text_config"]
    w = Writer(target)
    w.put("embed.weight", w.normal(c["vocab_size"], c["hidden_size"]))
    w.put("head.weight", w.normal(c["vocab_size"], c["hidden_size"], std=3 * c["hidden_size"] ** -0.5))
    w.norm("norm.weight", c["hidden_size"])
    w.flush("model-00000.safetensors")
    n_layers = c["num_hidden_layers"]
    tables = dict(zip(c["engram_layer_ids"], c["engram_num_embeddings"], strict=True))
    for layer in range(n_layers):
        block(w, f"layers.{layer}.", c, n_experts=c["n_routed_experts"], layer=layer)
        if layer in tables:
            engram(w, f"layers.{layer}.", c, n_rows=tables[layer])
        w.flush(f"model-{layer + 1:05d}.safetensors")
    for stage in range(c["num_nextn_predict_layers"]):
        draft(w, stage, c)
        w.flush(f"model-{n_layers + 1 + stage:05d}.safetensors")
    for file in source.iterdir():
        shutil.copy(file, target / file.name)
    index = {"metadata": {"total_size": 0}, "weight_map": w.weight_map}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    generation = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "do_sample": False}
    (target / "generation_config.json").write_text(json.dumps(generation))


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else HERE)
