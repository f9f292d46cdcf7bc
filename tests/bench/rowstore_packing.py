"""The packer against cp of the same bytes."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from dsv41_rowstore import Partition, engram_geometry, layout, pack_layer
from rowstore_parts import RELEASED, Bench, Table


def pack(bench: Bench) -> None:
    """Packing a rank of one against cp of the same bytes and a sync of it."""
    vocab = 40_000 if bench.args.quick else 160_000
    directory = Path(tempfile.mkdtemp(dir=bench.table.path.parent))
    try:
        checkpoint = directory / "checkpoint"
        n_bytes = make_checkpoint(checkpoint, vocab, bench.table)
        source = checkpoint / "model.safetensors"
        shares, rounds = [], []
        for _ in range(3):
            took = {}
            for name in ("cp", "pack"):
                target = directory / name
                target.mkdir()
                os.sync()
                fd = os.open(source, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
                begun = time.perf_counter()
                if name == "cp":
                    subprocess.run(["cp", "--reflink=never", source, target], check=True)
                    subprocess.run(["sync", target / source.name], check=True)
                else:
                    pack_layer(checkpoint, target, layer=1, rank=0, world_size=1, partition=Partition.BALANCED,
                               revision="bench")  # fmt: skip
                took[name] = time.perf_counter() - begun
                shutil.rmtree(target)
            shares.append(took["cp"] / took["pack"])
            rounds.append({name: round(n_bytes / s / 1e6) for name, s in took.items()})
        bench.measured["pack_mb_per_s"] = rounds
        bench.at_least("pack rate over cp and sync of the same bytes", 0.8, statistics.median(shares))
    finally:
        shutil.rmtree(directory)


def make_checkpoint(path: Path, vocab: int, table: Table) -> int:
    path.mkdir()
    config = {**RELEASED, "engram_vocab_size": vocab, "engram_layer_ids": [1], "engram_num_embeddings": [0]}
    try:
        engram_geometry(config)
    except layout.RowFileRefused as says:
        config["engram_num_embeddings"] = json.loads("[" + says.what.split("sum to [")[1])
    (rows,) = config["engram_num_embeddings"]
    (path / "config.json").write_text(json.dumps(config))
    tensors = {
        "layers.1.engram.embed.weight": {"dtype": "F8_E4M3", "shape": [rows, 256], "data_offsets": [0, rows * 256]},
        "layers.1.engram.embed.scale": {
            "dtype": "F8_E8M0", "shape": [rows, 8], "data_offsets": [rows * 256, rows * 264],
        },
    }  # fmt: skip
    head = json.dumps(tensors).encode()
    with open(path / "model.safetensors", "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        block = (ctypes.c_char * (65536 * 264))()
        for first in range(0, rows, 65536):
            n = min(65536, rows - first)
            table.oracle.oracle_fill(block, ctypes.c_int64(first), ctypes.c_int64(n))
            file.write(memoryview(block)[: n * 264])
        os.fsync(file.fileno())
    return rows * 264
