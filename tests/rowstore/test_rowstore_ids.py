"""The Engram hash against an independent one in plain integers, and against the engine where it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from dsv41_rowstore import EngramHash, RowFileRefused, engram_geometry
from dsv41_rowstore.ids import MM_PAD_SHIFT
from dsv41_rowstore.multipliers import hash_multipliers
from hypothesis import given, settings
from hypothesis import strategies as st

RELEASED = {
    "engram_layer_ids": [1, 14], "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 256,
    "engram_vocab_size": 16_000_000, "engram_num_embeddings": [384_006_168, 384_016_682],
    "engram_compressed_vocab_size": 99_092, "engram_pad_token_id": 2,
}  # fmt: skip
MULTIPLIERS = {
    1: (76632096046245, 4839876093313, 35959672319349, 73987337458391),
    14: (67716810739261, 51510806800915, 30921347202721, 82619226485591),
}
IMAGE = 129_264


def some_map(vocab: int = 99_092, n_tokens: int = 129_280) -> array:
    rng = random.Random(0)
    mapped = list(range(vocab)) + [rng.randrange(vocab) for _ in range(n_tokens - vocab)]
    rng.shuffle(mapped)
    return array("i", mapped)


TOKEN_MAP = some_map()


@pytest.fixture(scope="module")
def hasher():
    return EngramHash(RELEASED, TOKEN_MAP, image_token_id=IMAGE)


def reference(layer: int, window: list[int]) -> list[int]:
    """Rows of one window of four compressed ids, newest first, in plain integers from the prose."""
    (geometry,) = (g for g in engram_geometry(RELEASED) if g.layer == layer)
    rows, folded, first = [], window[0] * MULTIPLIERS[layer][0], 0
    for back in range(1, 4):
        folded ^= window[back] * MULTIPLIERS[layer][back]
        for head in range(8):
            prime = geometry.head_sizes[(back - 1) * 8 + head]
            rows.append(folded % prime + first)
            first += prime
    return rows


def windows_of(tokens: list[int], history: list[int]) -> list[list[int]]:
    """Compressed windows of a sequence: pads past its start and from an image token on."""
    everything = history + tokens
    found = []
    for at in range(len(history), len(everything)):
        window, padding = [], False
        for back in range(4):
            token = everything[at - back] if at >= back else None
            padding = padding or token is None or token == IMAGE or token >= MM_PAD_SHIFT
            window.append(TOKEN_MAP[2] if padding else TOKEN_MAP[token])
        found.append(window)
    return found


def rows_of(hasher, layer, tokens, history=()):
    out = memoryview(bytearray(8 * 24 * len(tokens))).cast("q", [len(tokens), 24]) if tokens else None
    if out is None:
        return []
    hasher.sequence(layer, array("q", tokens), out, history=history)
    return out.tolist()


def test_multipliers_are_the_published_ones():
    for layer, multipliers in MULTIPLIERS.items():
        assert hash_multipliers(layer, 4, 99_092) == multipliers


def test_multipliers_are_those_of_numpy():
    numpy = pytest.importorskip("numpy")
    for layer in (0, 1, 2, 14, 39, 1000, 10**9):
        for vocab in (2, 999, 99_092, 129_280, 1 << 27):
            bound = max(1, ((1 << 63) - 1) // vocab // 2)
            drawn = (
                numpy.random.default_rng(10007 * layer).integers(0, bound, size=4, dtype=numpy.int64) * 2 + 1
            )
            assert hash_multipliers(layer, 4, vocab) == tuple(drawn.tolist())


token = st.one_of(st.integers(0, 129_279), st.just(IMAGE), st.integers(MM_PAD_SHIFT, MM_PAD_SHIFT + 5))


@settings(deadline=None, max_examples=150)
@given(
    tokens=st.lists(token, max_size=12), history=st.lists(token, max_size=6), layer=st.sampled_from([1, 14])
)
def test_rows_of_a_sequence_follow_the_prose(hasher, tokens, history, layer):
    # A history of three or more says nothing about the start; a shorter one is the start.
    expected = [reference(layer, window) for window in windows_of(tokens, history[-3:] if history else [])]
    assert rows_of(hasher, layer, tokens, history) == expected


def test_a_sequence_hashed_in_pieces_equals_it_hashed_at_once(hasher):
    rng = random.Random(4)
    tokens = [rng.randrange(129_280) for _ in range(200)]
    whole, pieces, at = rows_of(hasher, 1, tokens), [], 0
    while at < len(tokens):
        n = rng.randrange(1, 9)
        pieces += rows_of(hasher, 1, tokens[at : at + n], tokens[:at])
        at += n
    assert pieces == whole


def test_largest_products_stay_exact(hasher):
    """Compressed ids at the end of the vocabulary give the largest products; a signed overflow would show."""
    top = [TOKEN_MAP.index(99_091 - i) for i in range(8)]
    for layer in (1, 14):
        assert rows_of(hasher, layer, top) == [reference(layer, w) for w in windows_of(top, [])]


def test_every_row_lies_in_its_own_head(hasher):
    rng = random.Random(6)
    for layer, geometry in zip((1, 14), engram_geometry(RELEASED), strict=True):
        bounds = [0]
        for size in geometry.head_sizes:
            bounds.append(bounds[-1] + size)
        for rows in rows_of(hasher, layer, [rng.randrange(129_280) for _ in range(2000)]):
            assert all(bounds[c] <= row < bounds[c + 1] for c, row in enumerate(rows))


def test_unknown_tokens_and_wrong_shapes_are_refused(hasher):
    out = memoryview(bytearray(8 * 48)).cast("q", [2, 24])
    with pytest.raises(ValueError, match="token 129280 at position 1 is not among the tokenizer's 129280"):
        hasher.sequence(1, array("q", [5, 129_280]), out)
    with pytest.raises(ValueError, match="token -1 at position -1"):
        hasher.sequence(1, array("q", [5, 6]), out, history=[-1])
    with pytest.raises(ValueError, match=r"out is \[2, 24\], expected \[3, 24\]"):
        hasher.sequence(1, array("q", [5, 6, 7]), out)
    with pytest.raises(ValueError, match="layer 2 has no Engram table"):
        hasher.sequence(2, array("q", [5, 6]), out)
    assert not any(map(any, out.tolist()))


def test_a_token_map_of_another_tokenizer_is_refused():
    with pytest.raises(RowFileRefused, match=r"the token map has 999 distinct ids.*is 99092"):
        EngramHash(RELEASED, some_map(999, 2000))


SHIMS = Path(__file__).parents[2] / "demo" / "shims"  # stand-ins for what the engine imports and a CPU lacks


def engine_python() -> str | None:
    asked = os.environ.get("DSV41_ENGINE_PYTHON")
    found = Path(asked) if asked else Path(__file__).parents[2] / ".venv-engine" / "bin" / "python"
    return str(found) if found.exists() else None


ENGINE = """
import json, sys, types, torch
from sglang.srt.layers import engram
asked = json.load(sys.stdin)
config = types.SimpleNamespace(**asked["config"])
layout = engram.EngramLayout.from_config(config)
h = engram.EngramHasher.__new__(engram.EngramHasher)
torch.nn.Module.__init__(h)
h.max_ngram_size, h._cpu_hash_params, h.image_token_id = 4, None, asked["image"]
h.token_map = torch.tensor(asked["map"])
h.pad_id = asked["map"][config.engram_pad_token_id]
h.multipliers = engram.compute_hash_multipliers(layout.layer_ids, 4, config.engram_compressed_vocab_size)
h.primes = torch.tensor(layout.primes)
flat = [[p for sizes in layer for p in sizes] for layer in layout.primes]
h.offsets = torch.tensor([[sum(sizes[:i]) for i in range(len(sizes))] for sizes in flat])
rows, _ = h.hash_windows(torch.tensor(asked["tokens"]), torch.tensor(asked["blocked"]).bool())
bounds = [layout.column_bounds(i) for i in range(2)]
spans = {w: [[engram.shard_range(b[-1], b, r, w) for r in range(w)] for b in bounds] for w in (1, 2, 3, 4, 5, 7)}
print(json.dumps({"rows": rows.tolist(), "spans": spans}))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    engine_python() is None, reason="needs the engine's environment (.venv-engine or DSV41_ENGINE_PYTHON)"
)
@pytest.mark.parametrize("image", [None, IMAGE])
def test_rows_and_contiguous_shards_equal_the_engines(image):
    from dsv41_rowstore import Partition
    from dsv41_rowstore.layout import owned_spans

    rng = random.Random(9)
    pool = [0, 1, 2, 129_279, *([IMAGE, MM_PAD_SHIFT, MM_PAD_SHIFT + 7] if image else [])]
    tokens = [[rng.choice([rng.randrange(129_280), rng.choice(pool)]) for _ in range(4)] for _ in range(500)]
    blocked = [[int(s > start) for s in range(4)] for start in (rng.randrange(5) for _ in tokens)]
    blocked += [[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 1, 0]]
    tokens += [[5, 6, 7, 8]] * 3
    asked = {
        "config": RELEASED,
        "map": TOKEN_MAP.tolist(),
        "image": image,
        "tokens": tokens,
        "blocked": blocked,
    }
    done = subprocess.run(
        [engine_python(), "-c", ENGINE], input=json.dumps(asked), capture_output=True, text=True, timeout=300,
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "SGLANG_PLUGINS": "", "PYTHONPATH": str(SHIMS)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    hasher = EngramHash(RELEASED, TOKEN_MAP, image_token_id=image)
    n = len(tokens)
    flat_tokens = memoryview(array("q", sum(tokens, []))).cast("B").cast("q", [n, 4])
    flat_blocked = memoryview(bytes(sum(blocked, []))).cast("B", [n, 4])
    for i, layer in enumerate((1, 14)):
        out = memoryview(bytearray(8 * 24 * n)).cast("q", [n, 24])
        hasher.windows(layer, flat_tokens, flat_blocked, out)
        assert out.tolist() == [rows[i] for rows in answer["rows"]]
    for world_size, layers in answer["spans"].items():
        for geometry, ranges in zip(engram_geometry(RELEASED), layers, strict=True):
            for rank, (low, high) in enumerate(ranges):
                spans = owned_spans(geometry.head_sizes, rank, int(world_size), Partition.CONTIGUOUS)
                assert (spans[0].start, spans[-1].stop) == (low, high)


# b12x without its GPU side: the packages above two of its files are empty, and torch is the one call they make of it.
B12X = """
import importlib, json, sys, types
asked = json.load(sys.stdin)
for name in ("b12x", "b12x.sequence", "b12x.sequence.engram", "b12x.sequence.ple_hash"):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [asked["where"] + "/" + name.replace(".", "/")]
class Rows(list):
    def reshape(self, *shape):
        return self
sys.modules["torch"] = torch = types.ModuleType("torch")
torch.Tensor, torch.int64, torch.tensor = Rows, None, lambda rows, dtype: Rows(rows)
geometry = importlib.import_module("b12x.sequence.engram.geometry").build_geometry(
    layer_ids=(1, 14), base_table_size=16_000_000, compressed_vocab_size=99_092)
hash_reference = importlib.import_module("b12x.sequence.engram.reference").hash_reference
rows = {layer: hash_reference(asked["tokens"], asked["mask"], asked["starts"], range(len(asked["history"])),
                              asked["history"], asked["map"], geometry, layer) for layer in (1, 14)}
print(json.dumps([geometry.primes, geometry.offsets, geometry.multipliers, geometry.num_embeddings, rows]))
"""


def b12x_place() -> str | None:
    """A directory or wheel that holds b12x. It needs torch and CUDA to import, so it is never installed beside us."""
    asked = os.environ.get("DSV41_B12X")
    if asked:
        return asked
    found = importlib.util.find_spec("b12x")
    return str(Path(found.origin).parents[1]) if found and found.origin else None


@pytest.mark.slow
@pytest.mark.skipif(
    b12x_place() is None,
    reason="needs b12x: pip download --no-deps b12x==1.5.1, and DSV41_B12X=the wheel",
)
def test_geometry_and_rows_equal_those_of_b12x(hasher):
    """Sequences that begin, sequences that go on (a history of three), images in both, ids of every size."""
    pytest.importorskip("numpy", reason="b12x draws its multipliers with numpy")
    rng = random.Random(12)
    edge = [0, 1, 2, 129_279, TOKEN_MAP.index(99_091), TOKEN_MAP.index(0), IMAGE, IMAGE]
    sequences = []
    for n in [1, 2, 3, 4, 5, *(rng.randrange(1, 40) for _ in range(120))]:
        draw = [rng.choice([rng.randrange(129_280), rng.choice(edge)]) for _ in range(n + 3)]
        sequences.append((draw[:3] if rng.random() < 0.5 else [], draw[3:]))
    flat = [t for _, tokens in sequences for t in tokens]
    starts = [0]
    for _, tokens in sequences:
        starts.append(starts[-1] + len(tokens))
    asked = {
        "where": b12x_place(), "tokens": flat, "mask": [t != IMAGE for t in flat], "starts": starts,
        "map": TOKEN_MAP.tolist(),
        "history": [[-1 if t == IMAGE else TOKEN_MAP[t] for t in before] or [-1] * 3 for before, _ in sequences],
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", B12X], input=json.dumps(asked), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    primes, offsets, multipliers, n_rows, rows = json.loads(done.stdout)
    for i, geometry in enumerate(engram_geometry(RELEASED)):
        assert tuple(primes[i]) == tuple(geometry.head_sizes)
        assert offsets[i] == [sum(geometry.head_sizes[:h]) for h in range(24)]
        assert n_rows[i] == geometry.n_rows
        assert tuple(multipliers[i]) == MULTIPLIERS[geometry.layer]
        ours = [row for before, tokens in sequences for row in rows_of(hasher, geometry.layer, tokens, before)]
        assert ours == rows[str(geometry.layer)]
