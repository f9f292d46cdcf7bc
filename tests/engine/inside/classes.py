"""In the engine's environment: SGLang's Engram classes beside ours, without a server. Prints one JSON object.

    classes.py CHECKPOINT REVISION SCRATCH [PARTITION WORLD_SIZE ROWS]...

One process for all of it, because importing SGLang is what costs. Only `get_parallel` is set by hand, so that one
process can stand for every rank; all else is the real code.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from deepseek_recipe import SpecialToken
from dsv41_adapters.activation import AdapterRun
from dsv41_adapters.adapter import Role
from dsv41_adapters.engram_nvme.install import RankRows, embedding_class
from dsv41_adapters.engram_nvme.spec import ADAPTER
from dsv41_adapters.engram_nvme.tables import without_tables
from dsv41_adapters.plan import RankPlan, RowsPlan
from dsv41_adapters.report import Reporter
from safetensors.torch import load_file, save_file
from sglang.srt.layers import engram
from sglang.srt.model_loader.weight_utils import (
    buffered_multi_thread_safetensors_weights_iterator,
    safetensors_weights_iterator,
)
from sglang.srt.utils.hf_transformers.tokenizer import get_tokenizer

CHECKPOINT, REVISION, SCRATCH = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
CONFIG = SimpleNamespace(**json.loads((CHECKPOINT / "config.json").read_text()))
LAYOUT = engram.EngramLayout.from_config(CONFIG)
parallel = SimpleNamespace(tp_size=1, tp_rank=0)
engram.get_parallel = lambda: parallel


def adapter_run(rank: int, world_size: int, partition: str, rows: str, **settings: Any) -> AdapterRun:
    rows_plan = RowsPlan(rows, partition, REVISION, 1 << 20, 16, "auto")
    plan = RankPlan("spark", rank, world_size, "boot", SCRATCH, {"engram_nvme": {}}, rows_plan)
    reporter = Reporter(SCRATCH, boot=plan.boot, rank=rank, role=Role.SCHEDULER)
    return AdapterRun(ADAPTER, ADAPTER.settings(**settings), plan, reporter)


def our_class(rank: int, world_size: int, partition: str, rows: str) -> type[engram.EngramEmbedding]:
    return embedding_class(RankRows(adapter_run(rank, world_size, partition, rows)))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def lookups(partition: str, world_size: int, rows: str) -> dict[str, Any]:
    """Rows of both layers, rank by rank and summed over ranks."""
    torch.manual_seed(0)
    n_lookups, n_owned, equal = 0, 0, True
    for index, layer in enumerate(LAYOUT.layer_ids):
        n_rows, bounds = LAYOUT.num_embeddings[index], LAYOUT.column_bounds(index)
        table = load_file(CHECKPOINT / f"model-0000{3 + index}-of-00004.safetensors")
        edges = torch.tensor([edge for b in bounds for edge in (b - 1, b, b + 1) if 0 <= edge < n_rows])
        ids = torch.cat([torch.randint(0, n_rows, (20_000 - len(edges),)), edges]).view(-1, 4)
        stock_sum = our_sum = None
        for rank in range(world_size):
            parallel.tp_size, parallel.tp_rank = world_size, rank
            arguments = (n_rows, CONFIG.engram_head_dim, layer, bounds)
            stock = engram.EngramEmbedding(*arguments)
            for plane in ("weight", "scale"):
                parameter = getattr(stock, plane)
                parameter.weight_loader(parameter, table[f"layers.{layer}.engram.embed.{plane}"])
            ours = our_class(rank, world_size, partition, rows)(*arguments)
            assert not list(ours.parameters()), "the adapter's embedding holds parameters"
            ours.finish_load("test")
            expected, got = stock._owned_rows(ids), ours._owned_rows(ids)
            if partition == "contiguous" or world_size == 1:
                equal &= same_bits(got, expected)
            stock_sum = expected if stock_sum is None else stock_sum + expected
            our_sum = got if our_sum is None else our_sum + got
            n_owned += ours.rows
            nothing = ours._lookup(ids[:0])
            assert nothing.shape == (0, 4, CONFIG.engram_head_dim) and nothing.dtype == torch.bfloat16
        equal &= same_bits(our_sum, stock_sum)
        n_lookups += ids.numel()
    return {"lookups": n_lookups, "equal": equal, "rows_owned": n_owned}


def chunked(rows: str) -> dict[str, Any]:
    """Ids that are submitted ahead, in chunks smaller than the lookup: every layer, through SGLang's own forward."""
    parallel.tp_size, parallel.tp_rank = 1, 0
    run = adapter_run(0, 1, "balanced", rows, staging_tokens=8)
    ranks = RankRows(run)
    ours, stock = {}, {}
    for index, layer in enumerate(LAYOUT.layer_ids):
        arguments = (LAYOUT.num_embeddings[index], CONFIG.engram_head_dim, layer, LAYOUT.column_bounds(index))
        ours[layer], stock[layer] = embedding_class(ranks)(*arguments), engram.EngramEmbedding(*arguments)
        table = load_file(CHECKPOINT / f"model-0000{3 + index}-of-00004.safetensors")
        for plane in ("weight", "scale"):
            parameter = getattr(stock[layer], plane)
            parameter.weight_loader(parameter, table[f"layers.{layer}.engram.embed.{plane}"])
    for embedding in ours.values():
        embedding.finish_load("test")
    n_columns = len(LAYOUT.column_bounds(0)) - 1
    equal, jobs = True, []
    for n_tokens in (1, 7, 8, 9, 16, 17, 61):
        for is_ahead in (True, False, True):  # the first one after a pass that left its lookups behind
            ids = torch.stack(
                [torch.randint(0, n_rows, (n_tokens, n_columns)) for n_rows in LAYOUT.num_embeddings], dim=1
            )
            if is_ahead:
                before = ranks.lookups.store.counters()["jobs"]
                ranks.prefetch(ids)
                jobs.append(ranks.lookups.store.counters()["jobs"] - before)
            for index, layer in enumerate(LAYOUT.layer_ids):
                equal &= same_bits(ours[layer](ids[:, index]), stock[layer](ids[:, index]))
        ranks.prefetch(ids)
    other = ids.clone()
    equal &= same_bits(ours[1](other[:, 0]), stock[1](other[:, 0]))  # not the memory that was submitted
    return {"equal": equal, "jobs_ahead": jobs, "flagged": ranks.flags.end_of_step(None).failed()}


def cut_short(rows: str) -> dict[str, Any]:
    """What a lookup gives when the file under it lost its rows: NaN, an error, a flag; the next step none of it."""
    parallel.tp_size, parallel.tp_rank = 1, 0
    damaged = SCRATCH / "damaged"
    damaged.mkdir()
    for file in Path(rows).iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    layer, n_rows, bounds = LAYOUT.layer_ids[0], LAYOUT.num_embeddings[0], LAYOUT.column_bounds(0)
    ranks = RankRows(adapter_run(0, 1, "balanced", str(damaged)))
    ours = embedding_class(ranks)(n_rows, CONFIG.engram_head_dim, layer, bounds)
    ours.finish_load("test")
    whole = (damaged / f"engram-l{layer}-r0of1.bin").read_bytes()
    os.truncate(damaged / f"engram-l{layer}-r0of1.bin", 8192)
    ids = torch.arange(n_rows - 64, n_rows)
    raw = ours._owned_rows(ids)
    first = [(type(error).__name__, str(error)) for error in ranks.take_errors()]
    given = ours(ids)
    flagged = ranks.flags.end_of_step(None).failed()
    second = len(ranks.take_errors())
    (damaged / f"engram-l{layer}-r0of1.bin").write_bytes(whole)
    ours(ids)
    return {
        "all_nan": bool(raw.isnan().all()),
        "errors": first,
        "errors_of_the_second": second,
        "flagged": flagged,
        "finite": bool(given.isfinite().all()),
        "flagged_afterwards": ranks.flags.end_of_step(None).failed(),
        "errors_afterwards": len(ranks.take_errors()),
    }


def mixed_file() -> dict[str, list[str]]:
    """What each of SGLang's iterators gives of a file in which tables lie beside other tensors."""
    names = (
        "layers.1.engram.embed.weight",
        "model.layers.14.engram.embed.scale",
        "layers.1.engram.wkv.weight",
    )
    file = SCRATCH / "mixed.safetensors"
    save_file({name: torch.zeros(4) for name in names}, file)
    plain = str(CHECKPOINT / "model-00001-of-00004.safetensors")
    threads = {"max_workers": 2}
    return {
        iterator.__name__: [name for name, _ in without_tables(iterator, [plain, str(file)], **arguments)]
        for iterator, arguments in (
            (safetensors_weights_iterator, {}),
            (buffered_multi_thread_safetensors_weights_iterator, threads),
        )
    }


def tokens() -> dict[str, Any]:
    """What SGLang and transformers make of the demo's tokenizer."""
    tokenizer = get_tokenizer(str(CHECKPOINT), tokenizer_backend="huggingface")
    token_map, n_compressed = engram.build_compressed_token_map(tokenizer)
    text = "The quick brown fox, Größe, 火花 and  two  spaces\n"
    special = [getattr(SpecialToken, name).default_str() for name in dir(SpecialToken) if name[0].isupper()]
    return {
        "map": token_map,
        "n_compressed": n_compressed,
        "n_tokens": len(tokenizer),
        "rows": [LAYOUT.column_bounds(i)[-1] for i in range(len(LAYOUT.layer_ids))],
        "text": text,
        "round_trip": tokenizer.decode(tokenizer.encode(text)),
        "n_ids": len(tokenizer.encode(text)),
        "special": {token: tokenizer.encode(token) for token in special},
    }


asked = sys.argv[4:]
triples = [asked[i : i + 3] for i in range(0, len(asked), 3)]
found = {
    f"{partition}-{world_size}": lookups(partition, int(world_size), rows) for partition, world_size, rows in triples
}
print(
    json.dumps(
        {
            "lookups": found,
            "chunked": chunked(triples[0][2]),
            "cut_short": cut_short(triples[0][2]),
            "mixed": mixed_file(),
            "tokens": tokens(),
        }
    )
)
