#!/usr/bin/env python3
"""Write the demo checkpoint: a tiny seeded model with real Engram tables, in safetensors shards.

    python3 demo/make_checkpoint.py OUT [--seed N] [--json]

Needs nothing but the standard library, so that it also serves machines without the engine's environment.
The trunk is a two-layer Qwen3 of width 96; layers 1 and 14 carry Engram tables whose tensors have the names,
the types and the two-plane layout of the real checkpoint, each table in a checkpoint file of its own.
Every dimension that tensor parallelism divides is divisible by 1, 3 and 4.

`OUT/dsv41-checkpoint.json` names every file with its size and SHA-256; its `revision` is the hash over them.
A finished checkpoint of the same recipe and seed is left alone; anything else is written beside OUT,
flushed to the disk and renamed, so that a reader never sees half of it.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import json
import math
import os
import random
import shutil
import statistics
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from vocabulary import VOCAB_SIZE, Vocabulary, make_vocabulary

MANIFEST = "dsv41-checkpoint.json"
FORMAT = 1
HIDDEN = 96
INTERMEDIATE = 192
N_LAYERS = 2
N_HEADS = 12
HEAD_DIM = 16
ENGRAM_LAYERS = (1, 14)
ENGRAM_BASE = 1000  # the real one is 16,000,000; primes are drawn upwards from here
ENGRAM_NGRAMS = (2, 3, 4)
ENGRAM_HEADS = 8
ROW_COLUMNS = 256
SCALE_COLUMNS = 8  # one E8M0 exponent per 32 columns
EX_UNAVAILABLE = 69
EX_CONFIG = 78


class CheckpointRefused(Exception):
    """OUT cannot become a checkpoint; the message says what, where and what to do next."""

    def __init__(self, message: str, status: int = EX_CONFIG) -> None:
        super().__init__(message)
        self.status = status


# --- values -------------------------------------------------------------------------------------------------

_NORMAL = statistics.NormalDist()
_QUANTILES = [_NORMAL.inv_cdf((i + 0.5) / 256) for i in range(256)]


def _e4m3_values() -> dict[int, float]:
    """Every finite FP8 E4M3 (fn) code and its value; 0x7F and 0xFF are NaN and left out."""
    values = {}
    for code in range(256):
        if code & 0x7F == 0x7F:
            continue
        exponent, mantissa = (code >> 3) & 15, code & 7
        size = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        values[code] = -size if code & 0x80 else size
    return values


def _fp8_table() -> bytes:
    """A uniform byte → the E4M3 code nearest that quantile of N(0, 1); for `bytes.translate`."""
    values = _e4m3_values()
    return bytes(min(values, key=lambda code: (abs(values[code] - q), code)) for q in _QUANTILES)


def _bf16_code(value: float) -> int:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def bf16_normal(rng: random.Random, n: int, std: float) -> bytes:
    """`n` little-endian bfloat16 values from 256 quantiles of N(0, std): enough for weights nobody trains."""
    codes = [_bf16_code(q * std) for q in _QUANTILES]
    raw = rng.randbytes(n)
    out = bytearray(2 * n)
    out[0::2] = raw.translate(bytes(code & 0xFF for code in codes))
    out[1::2] = raw.translate(bytes(code >> 8 for code in codes))
    return bytes(out)


def bf16_full(n: int, value: float) -> bytes:
    return _bf16_code(value).to_bytes(2, "little") * n


def fp8_rows(rng: random.Random, n_rows: int) -> bytes:
    return rng.randbytes(n_rows * ROW_COLUMNS).translate(_fp8_table())


def e8m0_scales(rng: random.Random, n_rows: int) -> bytes:
    """Exponents 2^-3 … 2^2, so that a test which ignores scales cannot pass."""
    return rng.randbytes(n_rows * SCALE_COLUMNS).translate(bytes(124 + i % 6 for i in range(256)))


# --- Engram geometry ----------------------------------------------------------------------------------------


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def engram_rows() -> list[int]:
    """Rows of each Engram layer's table: the sum of its 24 primes.

    Source: row ids as read off sglang 0.5.23, `sglang/srt/layers/engram.py: EngramLayout.from_config`; one
    ascending set is shared by all layers, and every n-gram size starts again just below the base.
    """
    seen: set[int] = set()
    rows = []
    for _ in ENGRAM_LAYERS:
        total = 0
        for _ in ENGRAM_NGRAMS:
            current = ENGRAM_BASE - 1
            for _ in range(ENGRAM_HEADS):
                current += 1
                while current in seen or not _is_prime(current):
                    current += 1
                seen.add(current)
                total += current
        rows.append(total)
    return rows


# --- tensors and files --------------------------------------------------------------------------------------

Tensor = tuple[str, str, list[int], bytes]  # name, safetensors dtype, shape, bytes


def trunk(rng: random.Random, vocabulary: Vocabulary) -> Iterator[Tensor]:
    def normal(name: str, *shape: int, std: float) -> Tensor:
        return name, "BF16", list(shape), bf16_normal(rng, math.prod(shape), std)

    def ones(name: str, *shape: int) -> Tensor:
        return name, "BF16", list(shape), bf16_full(math.prod(shape), 1.0)

    yield normal("model.embed_tokens.weight", VOCAB_SIZE, HIDDEN, std=0.5)
    heads = N_HEADS * HEAD_DIM
    for i in range(N_LAYERS):
        layer = f"model.layers.{i}"
        yield ones(f"{layer}.input_layernorm.weight", HIDDEN)
        yield ones(f"{layer}.post_attention_layernorm.weight", HIDDEN)
        for projection in ("q_proj", "k_proj", "v_proj"):
            yield normal(f"{layer}.self_attn.{projection}.weight", heads, HIDDEN, std=0.1)
        yield normal(f"{layer}.self_attn.o_proj.weight", HIDDEN, heads, std=0.1)
        yield ones(f"{layer}.self_attn.q_norm.weight", HEAD_DIM)
        yield ones(f"{layer}.self_attn.k_norm.weight", HEAD_DIM)
        yield normal(f"{layer}.mlp.gate_proj.weight", INTERMEDIATE, HIDDEN, std=0.1)
        yield normal(f"{layer}.mlp.up_proj.weight", INTERMEDIATE, HIDDEN, std=0.1)
        yield normal(f"{layer}.mlp.down_proj.weight", HIDDEN, INTERMEDIATE, std=0.1)
    yield ones("model.norm.weight", HIDDEN)
    # Only whole words get a row that is not zero: the model knows nothing, but what it says can be read.
    row = 2 * HIDDEN
    head = bytearray(row * VOCAB_SIZE)
    for token in vocabulary.word_ids:
        head[token * row : (token + 1) * row] = bf16_normal(rng, HIDDEN, 0.4)
    yield "lm_head.weight", "BF16", [VOCAB_SIZE, HIDDEN], bytes(head)


def engram_dense(rng: random.Random, layer: int) -> Iterator[Tensor]:
    columns = len(ENGRAM_NGRAMS) * ENGRAM_HEADS * ROW_COLUMNS
    wkv = bf16_normal(rng, 2 * HIDDEN * columns, 0.02)
    yield f"layers.{layer}.engram.wkv.weight", "BF16", [2 * HIDDEN, columns], wkv
    for side in ("q_weight", "k_weight"):
        yield f"layers.{layer}.engram.{side}", "BF16", [1, HIDDEN], bf16_full(HIDDEN, 1.0)


def engram_table(rng: random.Random, layer: int, n_rows: int) -> Iterator[Tensor]:
    embed = f"layers.{layer}.engram.embed"
    yield f"{embed}.weight", "F8_E4M3", [n_rows, ROW_COLUMNS], fp8_rows(rng, n_rows)
    yield f"{embed}.scale", "F8_E8M0", [n_rows, SCALE_COLUMNS], e8m0_scales(rng, n_rows)


def safetensors_bytes(tensors: list[Tensor]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape, content in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + len(content)]}
        position += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(content for *_, content in tensors)


def checkpoint_files(seed: int) -> Iterator[tuple[str, bytes]]:
    """Every file of the checkpoint but the manifest."""
    vocabulary = make_vocabulary()
    rows = engram_rows()
    shards = [list(trunk(random.Random(f"{seed}/trunk"), vocabulary))]
    dense_rng = random.Random(f"{seed}/engram-dense")
    shards.append([t for layer in ENGRAM_LAYERS for t in engram_dense(dense_rng, layer)])
    for layer, n_rows in zip(ENGRAM_LAYERS, rows, strict=True):
        shards.append(list(engram_table(random.Random(f"{seed}/engram-{layer}"), layer, n_rows)))
    weight_map, total = {}, 0
    for i, tensors in enumerate(shards, start=1):
        name = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        weight_map.update({tensor[0]: name for tensor in tensors})
        total += sum(len(tensor[3]) for tensor in tensors)
        yield name, safetensors_bytes(tensors)
    yield "model.safetensors.index.json", _json({"metadata": {"total_size": total}, "weight_map": weight_map})
    yield "config.json", _json(model_config(vocabulary, rows))
    yield "generation_config.json", _json({"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2})
    yield "tokenizer.json", _json(vocabulary.tokenizer_json())
    yield "tokenizer_config.json", _json(vocabulary.tokenizer_config())


def model_config(vocabulary: Vocabulary, rows: list[int]) -> dict[str, object]:
    return {
        "architectures": ["Dsv41DemoForCausalLM"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "layer_types": ["full_attention"] * N_LAYERS,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "hc_mult": 1,
        "engram_layer_ids": list(ENGRAM_LAYERS),
        "engram_num_embeddings": rows,
        "engram_max_ngram_size": max(ENGRAM_NGRAMS),
        "engram_vocab_size": ENGRAM_BASE,
        "engram_n_heads": ENGRAM_HEADS,
        "engram_head_dim": ROW_COLUMNS,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": len(set(vocabulary.compressed_map())),
    }


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


# --- OUT ----------------------------------------------------------------------------------------------------


def recipe() -> str:
    """Which code made it: a checkpoint by an older script is made again."""
    here = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for name in ("make_checkpoint.py", "vocabulary.py"):
        digest.update((here / name).read_bytes())
    return digest.hexdigest()[:16]


def revision_of(files: dict[str, dict[str, object]]) -> str:
    """The hash over names, sizes and contents of all files, in name order."""
    lines = (f"{name}\0{files[name]['bytes']}\0{files[name]['sha256']}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def is_current(out: Path, seed: int) -> dict[str, object] | None:
    """The manifest, when OUT is whole and was made by this recipe with this seed."""
    try:
        manifest = json.loads((out / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT or manifest["made_by"] != {"recipe": recipe(), "seed": seed}:
            return None
        for name, entry in manifest["files"].items():
            content = (out / name).read_bytes()
            if len(content) != entry["bytes"] or hashlib.sha256(content).hexdigest() != entry["sha256"]:
                return None
        return manifest if manifest["revision"] == revision_of(manifest["files"]) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_checkpoint(out: Path, seed: int = 0) -> tuple[dict[str, object], bool]:
    """Make OUT a whole checkpoint; returns its manifest and whether anything had to be written.

    Raises: CheckpointRefused, with nothing but OUT's old state left behind.
    """
    out = Path(os.path.abspath(out))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        parent = os.open(out.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise CheckpointRefused(
            f"demo checkpoint: cannot use directory {out.parent} ({error.strerror}). "
            "Name an output below a directory you may write to."
        ) from error
    staged = out.with_name(out.name + ".tmp")
    try:
        fcntl.flock(parent, fcntl.LOCK_EX)  # two demos starting at once make it once
        if (manifest := is_current(out, seed)) is not None:
            return manifest, False
        _refuse_foreign(out)
        try:
            _remove(staged)
            manifest = _stage(staged, seed)
            retired = out.with_name(out.name + ".old")
            _remove(retired)
            if out.exists():
                os.rename(out, retired)
            os.rename(staged, out)
            os.fsync(parent)
            _remove(retired)
        except OSError as error:
            shutil.rmtree(staged, ignore_errors=True)
            raise _refusal_of(error, out) from error
        return manifest, True
    finally:
        os.close(parent)


def _stage(staged: Path, seed: int) -> dict[str, object]:
    staged.mkdir()
    files = {}
    for name, content in checkpoint_files(seed):
        _write(staged / name, content)
        files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {
        "format": FORMAT,
        "revision": revision_of(files),
        "made_by": {"recipe": recipe(), "seed": seed},
        "files": files,
    }
    _write(staged / MANIFEST, _json(manifest))
    directory = os.open(staged, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return manifest


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        os.posix_fallocate(file.fileno(), 0, len(content))  # no space is found out before the first byte
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _refuse_foreign(out: Path) -> None:
    """Never delete what this script did not make."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise CheckpointRefused(f"demo checkpoint: {out} exists and is not a directory. Name another output.")
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
        raise CheckpointRefused(
            f"demo checkpoint: {out} holds files but no {MANIFEST}, so it is not ours to replace. "
            "Name another output, or empty it."
        )


def _refusal_of(error: OSError, out: Path) -> CheckpointRefused:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(out.parent).free
        return CheckpointRefused(
            f"demo checkpoint: no space left for {out} ({free / 2**20:.0f} MiB free, about 25 MiB needed). "
            "Free some, or name an output on another disk.",
            EX_UNAVAILABLE,
        )
    return CheckpointRefused(
        f"demo checkpoint: cannot write {out} ({error.strerror}). "
        "Name an output below a directory you may write to.",
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the checkpoint's directory")
    parser.add_argument("--seed", type=int, default=0, help="other weights for another number (default 0)")
    parser.add_argument("--json", action="store_true", help="print {path, revision, written, bytes}")
    args = parser.parse_args(argv)
    try:
        manifest, written = write_checkpoint(args.out, args.seed)
    except CheckpointRefused as refusal:
        print(refusal, file=sys.stderr)
        return refusal.status
    n_bytes = sum(entry["bytes"] for entry in manifest["files"].values())
    if args.json:
        report = {"path": os.path.abspath(args.out), "revision": manifest["revision"], "written": written}
        print(json.dumps({**report, "bytes": n_bytes}))
    else:
        what = "written" if written else "already there"
        print(f"demo checkpoint {what}: {args.out} ({n_bytes / 2**20:.1f} MiB, {manifest['revision'][:12]})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
