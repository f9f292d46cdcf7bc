"""A tiny checkpoint with Engram planes, and the oracle readers are compared with: the planes themselves."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from dsv41_rowstore import LayerGeometry, Partition, engram_geometry, pack_layer, rows_path

from tests.rowstore.bad_drive import Faulty

LAYERS = (1, 14)


def tiny_config(vocab: int = 53, layers: Sequence[int] = LAYERS) -> dict[str, object]:
    config: dict[str, object] = {
        "engram_layer_ids": list(layers),
        "engram_max_ngram_size": 4,
        "engram_n_heads": 8,
        "engram_vocab_size": vocab,
        "engram_head_dim": 256,
        "engram_num_embeddings": [],
    }
    config["engram_num_embeddings"] = row_counts(config)
    return config


def row_counts(config: dict[str, object]) -> list[int]:
    """Independent of layout.py: trial division over one shared ascending set."""
    taken: set[int] = set()
    counts = []
    for _ in config["engram_layer_ids"]:
        rows = 0
        for _ in range(config["engram_max_ngram_size"] - 1):
            n = config["engram_vocab_size"] - 1
            for _ in range(config["engram_n_heads"]):
                n += 1
                while n in taken or any(n % d == 0 for d in range(2, int(n**0.5) + 1)):
                    n += 1
                taken.add(n)
                rows += n
        counts.append(rows)
    return counts


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    entries, at = {}, 0
    for name, (dtype, shape, raw) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(raw for _, _, raw in tensors.values()))


@dataclass(frozen=True)
class TinyCheckpoint:
    path: Path
    geometry: dict[int, LayerGeometry]
    planes: dict[int, tuple[bytes, bytes]]
    revision: str = "0123456789abcdef0123456789abcdef01234567"

    def row(self, layer: int, row: int) -> bytes:
        weight, scale = self.planes[layer]
        return weight[row * 256 : row * 256 + 256] + scale[row * 8 : row * 8 + 8]

    def owner(self, layer: int, row: int, world_size: int, partition: Partition) -> int:
        """Written from FORMAT.md's table, not from layout.py."""
        sizes = self.geometry[layer].head_sizes
        head, first = 0, 0
        while row >= first + sizes[head]:
            first += sizes[head]
            head += 1
        if partition is Partition.BALANCED:
            return head % world_size
        if len(sizes) % world_size == 0:
            return head * world_size // len(sizes)
        total = sum(sizes)
        return next(
            r for r in range(world_size) if total * r // world_size <= row < total * (r + 1) // world_size
        )

    def expected(
        self, layer: int, ids: Sequence[int], rank: int, world_size: int, partition: Partition
    ) -> tuple[bytes, bytes]:
        weight, scale = [], []
        for row in ids:
            owned = self.owner(layer, row, world_size, partition) == rank
            whole = self.row(layer, row) if owned else bytes(264)
            weight.append(whole[:256])
            scale.append(whole[256:])
        return b"".join(weight), b"".join(scale)

    def pack(self, out: Path, rank: int, world_size: int, partition: Partition, **kwargs) -> dict[int, Path]:
        for layer in self.geometry:
            pack_layer(
                self.path, out, layer=layer, rank=rank, world_size=world_size, partition=partition,
                revision=self.revision, **kwargs,
            )  # fmt: skip
        return {layer: rows_path(out, layer, rank, world_size) for layer in self.geometry}


def make_checkpoint(
    path: Path,
    *,
    vocab: int = 53,
    layers: Sequence[int] = LAYERS,
    seed: int = 7,
    prefix: str = "",
    single: bool = False,
) -> TinyCheckpoint:
    """Two checkpoint files with an index (or one file), planes of random bytes: every row differs."""
    path.mkdir(parents=True, exist_ok=True)
    config = tiny_config(vocab, layers)
    (path / "config.json").write_text(json.dumps({"text_config": config} if prefix else config))
    geometry = {g.layer: g for g in engram_geometry(config)}
    rng = random.Random(seed)
    planes, files, weight_map = {}, {}, {}
    for i, layer in enumerate(layers):
        n = geometry[layer].n_rows
        planes[layer] = (rng.randbytes(n * 256), rng.randbytes(n * 8))
        file = "model.safetensors" if single else f"model-{i + 1:05d}-of-{len(layers):05d}.safetensors"
        base = f"{prefix}layers.{layer}.engram.embed."
        tensors = files.setdefault(file, {"other.weight": ("BF16", [3, 5], rng.randbytes(30))})
        tensors[base + "weight"] = ("F8_E4M3", [n, 256], planes[layer][0])
        tensors[base + "scale"] = ("F8_E8M0", [n, 8], planes[layer][1])
        weight_map |= {base + "weight": file, base + "scale": file}
    for file, tensors in files.items():
        write_safetensors(path / file, tensors)
    if not single:
        (path / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": weight_map})
        )
    return TinyCheckpoint(path, geometry, planes)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def checkpoint_maker() -> Callable[..., TinyCheckpoint]:
    return make_checkpoint


@pytest.fixture(scope="session")
def packed(
    checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[int, Path]]:
    """packed(rank, world_size, partition) → {layer: path}, packed once per session."""
    root, done = tmp_path_factory.mktemp("rows"), {}

    def get(rank: int, world_size: int, partition: Partition = Partition.BALANCED) -> dict[int, Path]:
        key = rank, world_size, partition
        if key not in done:
            done[key] = checkpoint.pack(root / str(partition), rank, world_size, partition)
        return done[key]

    return get


@pytest.fixture
def drive(checkpoint, packed, tmp_path):
    """(tell, paths): the packed files of a world of one, behind a drive that does as it is told."""
    real = packed(0, 1)
    mount = tmp_path / "mount"
    mount.mkdir()
    tell = Faulty(real[1].parent, mount)
    yield tell, {layer: mount / path.name for layer, path in real.items()}
    tell("go")
    tell("end")
    tell.process.wait(10)


@pytest.fixture
def soak_s() -> float:
    """How long the concurrent test of each engine runs; a real soak sets DSV41_SOAK_S=600."""
    return float(os.environ.get("DSV41_SOAK_S", "2"))
