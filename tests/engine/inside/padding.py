"""In the engine's environment: what `tp_pad` does to SGLang's own config, tensors and layers. Prints one JSON object.

    padding.py SCRATCH

The config class and its hook are SGLang's and armed through its registry; so are vocabulary shards and the MXFP8
re-encoding of scales. Attention has no CPU backend: its projections are computed here with the same shards that
`ColumnParallelLinear` and `RowParallelLinear` cut, and plain softmax between them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from dsv41_adapters.activation import AdapterRun
from dsv41_adapters.adapter import AdapterRefused, Role
from dsv41_adapters.hooks import arm_hooks
from dsv41_adapters.plan import RankPlan
from dsv41_adapters.report import Reporter
from dsv41_adapters.tp_pad import install
from dsv41_adapters.tp_pad.spec import ADAPTER
from sglang.srt.configs.deepseek_v41 import DeepseekV41Config
from sglang.srt.layers import linear
from sglang.srt.layers import vocab_parallel_embedding as vocabulary
from sglang.srt.layers.quantization.fp8_utils import block_fp8_scale_to_mxfp8_e8m0

scratch = Path(sys.argv[1])
WORLD = 3
plan = RankPlan("spark", 0, WORLD, "boot", scratch, {"tp_pad": {}}, None)
run = AdapterRun(ADAPTER, ADAPTER.settings(), plan, Reporter(scratch, boot="boot", rank=0, role=Role.SCHEDULER))
arm_hooks([(ADAPTER, install.hooks(run))], run.role)

RELEASED = {
    "num_attention_heads": 64, "num_key_value_heads": 1, "o_groups": 8, "o_lora_rank": 64, "head_dim": 32,
    "q_lora_rank": 96, "hidden_size": 128, "vocab_size": 129_280, "moe_intermediate_size": 2304, "n_shared_experts": 1,
    "n_routed_experts": 384, "dspark_n_routed_experts": 128, "quantization_config": {"weight_block_size": [32, 32]},
}  # fmt: skip
seen: dict[str, object] = {}

# ---- the config: once, from a dict, from a copy of itself, and nested
config = DeepseekV41Config(**RELEASED)
again = DeepseekV41Config.from_dict(config.to_dict())
nested = DeepseekV41Config(text_config={k: v for k, v in RELEASED.items() if k != "quantization_config"})
seen["heads"] = [(c.num_attention_heads, c.o_groups) for c in (config, again, nested)]
seen["empty"] = getattr(DeepseekV41Config(), "o_groups", None)
try:
    DeepseekV41Config(**(RELEASED | {"moe_intermediate_size": 2305}))
    seen["refused"] = None
except AdapterRefused as refusal:
    seen["refused"] = str(refusal)

# ---- tensors: what is padded, with what, and what is left alone
gen = torch.Generator().manual_seed(7)
heads, head_dim, groups, lora, hidden, q_lora = 64, 32, 8, 64, 128, 96


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=gen) / shape[-1] ** 0.5


stored = {
    "layers.0.attn.attn_sink": random(heads),
    "layers.0.attn.wq_b.weight": random(heads * head_dim, q_lora),
    "layers.0.attn.wo_a.weight": random(groups * lora, heads // groups * head_dim),
    "layers.0.attn.wo_b.weight": random(hidden, groups * lora),
    "layers.0.attn.wq_b.scale": torch.full((64, 3), 2.0).to(torch.float8_e8m0fnu),
    "layers.0.attn.wo_b.scale": torch.full((4, 16), 2.0).to(torch.float8_e8m0fnu),
    "layers.0.attn.indexer.wq_b.weight": random(32, q_lora),
    "layers.0.ffn.experts.0.w1.weight": random(8, 8),
    "mtp.0.ffn.gate.weight": random(128, hidden),
    "mtp.0.ffn.gate.bias": random(128),
}
padded = dict(install.padded(stored.items(), config, 129))
seen["shapes"] = {name: list(tensor.shape) for name, tensor in padded.items()}
seen["kept"] = all(
    torch.equal(
        padded[name].view(torch.uint8)[tuple(slice(0, n) for n in tensor.view(torch.uint8).shape)],
        tensor.view(torch.uint8),
    )
    for name, tensor in stored.items()
)
seen["scales"] = sorted(set(padded["layers.0.attn.wq_b.scale"].float().unique().tolist()))
seen["never"] = padded["mtp.0.ffn.gate.bias"][128:].tolist()
seen["the model's own gate is left alone"] = dict(
    install.padded({"layers.0.ffn.gate.weight": random(384, hidden)}.items(), config, 129)
)["layers.0.ffn.gate.weight"].shape[0]

# ---- the algebra of one attention layer, unpadded on one rank and padded over three


def attention(weights: dict[str, torch.Tensor], x: torch.Tensor, kv: torch.Tensor, n_heads: int, n_groups: int):
    """Queries against shared keys and values with a sink, and the grouped low-rank output. [T, hidden]."""
    q = (x @ weights["wq_b"].T).view(-1, n_heads, head_dim)
    scores = torch.einsum("thd,sd->ths", q, kv) * head_dim**-0.5
    with_sink = torch.cat([scores, weights["attn_sink"].view(1, n_heads, 1).expand(len(x), -1, 1)], dim=-1)
    o = torch.einsum("ths,sd->thd", with_sink.softmax(-1)[..., :-1], kv)
    o = o.reshape(len(x), n_groups, -1)
    low = torch.einsum("tgd,grd->tgr", o, weights["wo_a"].view(n_groups, lora, -1)).reshape(len(x), -1)
    return o, low @ weights["wo_b"].T


def short(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n: tensors[f"layers.0.attn.{n}" + (".weight" if n != "attn_sink" else "")] for n in
            ("attn_sink", "wq_b", "wo_a", "wo_b")}  # fmt: skip


def shard(weights: dict[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
    dims = {"attn_sink": 0, "wq_b": 0, "wo_a": 0, "wo_b": 1}
    return {
        name: w.narrow(dims[name], rank * (w.shape[dims[name]] // WORLD), w.shape[dims[name]] // WORLD)
        for name, w in weights.items()
    }


x, kv = random(40, q_lora), random(300, head_dim)
whole_o, whole = attention(short(stored), x, kv, heads, groups)
parts = [attention(shard(short(padded), r), x, kv, 32, 4) for r in range(WORLD)]
seen["heads bit-equal"] = torch.equal(torch.cat([o for o, _ in parts], 1)[:, :groups], whole_o)
seen["padding adds"] = float(parts[2][1].abs().max())
summed = parts[0][1] + parts[1][1] + parts[2][1]
seen["error over float64's"] = float(
    (summed.double() - whole.double()).abs().max()
    / (attention({n: w.double() for n, w in short(stored).items()}, x.double(), kv.double(), heads, groups)[1]
       - whole.double()).abs().max()
)  # fmt: skip

# ---- SGLang's own vocabulary shards at three ranks: every id once, none twice
owners = []
for rank in range(WORLD):
    parallel = SimpleNamespace(tp_rank=rank, tp_size=WORLD, tp_group=None)
    vocabulary.get_parallel = linear.get_parallel = lambda parallel=parallel: parallel
    layer = vocabulary.VocabParallelEmbedding(129_280, 2, params_dtype=torch.float32)
    indices = layer.shard_indices
    owners.append((indices.org_vocab_start_index, indices.org_vocab_end_index, layer.num_embeddings_per_partition))
seen["vocabulary"] = owners

# ---- MXFP8 takes the padded scales, and would not take memory that was never written
float_scale = padded["layers.0.attn.wq_b.scale"].float()
seen["mxfp8"] = list(block_fp8_scale_to_mxfp8_e8m0(float_scale, (heads * head_dim * 3 // 2, q_lora), [32, 32]).shape)
try:
    float_scale[-1] = 1e-42
    block_fp8_scale_to_mxfp8_e8m0(float_scale, (heads * head_dim * 3 // 2, q_lora), [32, 32])
    seen["mxfp8 of denormals"] = "taken"
except ValueError:
    seen["mxfp8 of denormals"] = "rejected"
print(json.dumps(seen))
