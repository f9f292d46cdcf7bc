"""In the engine's environment: SGLang's EngramEmbedding and the adapter's, row for row.

    lookup.py CHECKPOINT ROWS REVISION PARTITION WORLD_SIZE SCRATCH

Only `get_parallel` is set by hand, so that one process can stand for every rank; all else is the real code.
Prints {lookups, equal, rows_owned}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from dsv41_adapters.activation import AdapterRun
from dsv41_adapters.adapter import Role
from dsv41_adapters.engram_nvme.install import RankRows, embedding_class
from dsv41_adapters.engram_nvme.spec import ADAPTER
from dsv41_adapters.plan import RankPlan, RowsPlan
from dsv41_adapters.report import Reporter
from safetensors.torch import load_file
from sglang.srt.layers import engram

checkpoint, rows, revision, partition = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
world_size, scratch = int(sys.argv[5]), Path(sys.argv[6])
config = SimpleNamespace(**json.loads((checkpoint / "config.json").read_text()))
layout = engram.EngramLayout.from_config(config)
parallel = SimpleNamespace(tp_size=world_size, tp_rank=0)
engram.get_parallel = lambda: parallel
stock_class = engram.EngramEmbedding


def adapter_class(rank: int) -> type:
    rows_plan = RowsPlan(rows, partition, revision, 1 << 20, 16, "auto")
    plan = RankPlan("spark", rank, world_size, "boot", scratch, {"engram_nvme": {}}, rows_plan)
    reporter = Reporter(scratch, boot=plan.boot, rank=rank, role=Role.SCHEDULER)
    return embedding_class(RankRows(AdapterRun(ADAPTER, ADAPTER.settings(), plan, reporter)))


torch.manual_seed(0)
lookups, owned_rows, equal = 0, [0] * world_size, True
for hash_index, layer in enumerate(layout.layer_ids):
    n_rows, bounds = layout.num_embeddings[hash_index], layout.column_bounds(hash_index)
    table = load_file(checkpoint / f"model-0000{3 + hash_index}-of-00004.safetensors")
    edges = torch.tensor([edge for b in bounds for edge in (b - 1, b, b + 1) if 0 <= edge < n_rows])
    ids = torch.cat([torch.randint(0, n_rows, (20_000 - len(edges),)), edges]).view(-1, 4)
    stock_sum = our_sum = None
    for rank in range(world_size):
        parallel.tp_rank = rank
        arguments = (n_rows, config.engram_head_dim, layer, bounds)
        stock = stock_class(*arguments)
        for plane in ("weight", "scale"):
            getattr(stock, plane).weight_loader(
                getattr(stock, plane), table[f"layers.{layer}.engram.embed.{plane}"]
            )
        ours = adapter_class(rank)(*arguments)
        assert not list(ours.parameters()), "the adapter's embedding holds parameters"
        ours.finish_load("test")
        expected, got = stock._owned_rows(ids), ours._owned_rows(ids)
        owned_rows[rank] += ours.rows
        if partition == "contiguous":
            equal &= torch.equal(got.view(torch.int16), expected.view(torch.int16))
        stock_sum = expected if stock_sum is None else stock_sum + expected
        our_sum = got if our_sum is None else our_sum + got
        empty = ours._lookup(ids[:0])
        assert empty.shape == (0, 4, config.engram_head_dim) and empty.dtype == torch.bfloat16
    equal &= torch.equal(our_sum.view(torch.int16), stock_sum.view(torch.int16))
    lookups += ids.numel()
print(json.dumps({"lookups": lookups, "equal": equal, "rows_owned": owned_rows}))
