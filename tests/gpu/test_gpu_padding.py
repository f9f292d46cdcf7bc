"""tp_pad on a GPU: 64 heads padded to 128 or 96 where nothing needs it, and on three ranks, beside the stock engine.

Random weights amplify what differs in the last bit, and a token whose experts are nearly tied can take other ones. So
the measure of "the same" is the stock engine itself: served twice, and, with two GPUs, cut in two, where sums have
another order. Attention is compared layer by layer wherever a whole pass went into it with the same bits. A checkpoint
that lost one group of heads of one layer shows that less than the adapter could get wrong would be seen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from dsv41_adapters.adapter import State

from tests.gpu.servers import Server, prompt, request

N_TOKENS = (24, 40, 56, 72, 88, 104)
"""Lengths of the prompts, within a sliding window, so that the last layers see every token."""
N_STEPS = 6
VOCABULARY = 512
LEAST = {"attention": 0.01, "hidden": 0.05, "logprobs": 0.25}
"""Bounds of the median where the stock engine repeats itself bit for bit; nine of ten are within twice as much.
Attention and last hidden states as a fraction of a token's norm, log-probabilities as the largest difference over the
vocabulary."""
NOISE = 1.5
"""Elsewhere: how much further from stock than stock, cut in two, is from stock."""
STOCK = ("stock-eager", "stock-eager-again", "stock-tp2")
PADDED = ("padded", "padded-tp2-12", "padded-tp2-16", "padded-tp3")
N_LAYERS = 8
Distances = dict[str, list[float]]


@dataclass(frozen=True)
class Seen:
    """What a server answered to the prompts, and where its tensors are."""

    server: Server
    tokens: list[list[int]]
    logprobs: list[list[dict[int, float]]]

    def shards(self, first: int, n_tokens: int) -> list[dict[str, Any]]:
        """One pass as each rank wrote it; a worker may be a little behind the answer."""
        from safetensors.torch import load_file

        found = []
        for rank in self.server.ranks:
            path = rank.directory / "tensors" / f"{first}-{n_tokens}.safetensors"
            deadline = time.monotonic() + 30
            while not path.exists():
                assert time.monotonic() < deadline, f"{path} was not written"
                time.sleep(0.05)
            found.append(load_file(path))
        return found

    def tensors(self, first: int, n_tokens: int) -> dict[str, Any]:
        """One pass: what each layer's attention took and gave, summed over ranks, and the last hidden states."""
        shards = self.shards(first, n_tokens)
        found = {name: tensor for name, tensor in shards[0].items() if not name.endswith(".partial")}
        for name in shards[0]:
            if name.endswith(".partial"):
                found[name.replace(".partial", ".gave")] = sum(shard[name].float() for shard in shards)
        return found


def look(server: Server) -> Seen:
    """The first request may compile kernels, for minutes."""
    tokens, logprobs = [], []
    for salt, n_tokens in enumerate((33, *N_TOKENS)):
        body = request(prompt(n_tokens, salt), N_STEPS, return_logprob=True, top_logprobs_num=VOCABULARY)
        with server._open("/generate", body, timeout_s=280) as response:
            answer = json.load(response)
        tokens.append(answer["output_ids"])
        steps = answer["meta_info"]["output_top_logprobs"]
        logprobs.append([{token: logprob for logprob, token, *_ in step} for step in steps])
    return Seen(server, tokens[1:], logprobs[1:])


@pytest.fixture(scope="module")
def looked(fleet: dict[str, Server]) -> dict[str, Future[Seen]]:
    """What each of these servers answers; all are asked at once."""
    servers = [fleet[name] for name in (*STOCK, *PADDED, "dented") if name in fleet and fleet[name].problem is None]
    with ThreadPoolExecutor(16) as pool:
        return {server.kind.name: pool.submit(look, server) for server in servers}


@pytest.fixture
def see(server_of: Callable[[str], Server], looked: dict[str, Future[Seen]]) -> Callable[..., list[Seen]]:
    def find(*names: str) -> list[Seen]:
        for name in names:
            server_of(name)
        return [looked[name].result() for name in names]

    return find


def rows_apart(one: Any, other: Any) -> list[float]:
    """Distance of each row as a fraction of its norm."""
    one, other = one.float(), other.float()
    return ((one - other).norm(dim=-1) / one.norm(dim=-1)).tolist()


def apart(one: Seen, other: Seen) -> Distances:
    """By token: prefills, then each decode step as long as both chose the same tokens."""
    import torch

    found: Distances = {measure: [] for measure in ("input", *LEAST)} | {f"layer {i}": [] for i in range(N_LAYERS)}
    for index, n_tokens in enumerate(N_TOKENS):
        passes = [(0, n_tokens), *((n_tokens + step, 1) for step in range(N_STEPS - 1))]
        for step, (first, n_rows) in enumerate(passes):
            a, b = one.tensors(first, n_rows), other.tensors(first, n_rows)
            found["input"] += rows_apart(a["layers.0.took"], b["layers.0.took"])
            found["hidden"] += rows_apart(a["hidden"], b["hidden"])
            for layer in range(N_LAYERS if step == 0 else 1):  # behind the first, a step also reads what differs before
                if torch.equal(a[f"layers.{layer}.took"], b[f"layers.{layer}.took"]):
                    rows = rows_apart(a[f"layers.{layer}.gave"], b[f"layers.{layer}.gave"])
                    found["attention"] += rows
                    found[f"layer {layer}"] += rows
            of_one, of_other = one.logprobs[index][step], other.logprobs[index][step]
            assert len(of_one) == len(of_other) == VOCABULARY
            found["logprobs"].append(max(abs(of_one[token] - of_other[token]) for token in of_one))
            if one.tokens[index][step] != other.tokens[index][step]:
                break
    return found


def at(values: Iterable[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def shown(distances: Distances) -> dict[str, str]:
    """Median, what nine of ten are within, the largest, and of how many."""
    return {
        measure: f"{at(values, 0.5):.3g} {at(values, 0.9):.3g} {max(values):.3g} of {len(values)}"
        for measure, values in distances.items()
        if values
    }


def bounds(noise: list[Distances]) -> dict[str, tuple[float, float]]:
    """For the median and for nine of ten, from pairs of stock servers."""
    return {
        measure: (
            max(LEAST[measure], NOISE * max(at(pair[measure], 0.5) for pair in noise)),
            max(2 * LEAST[measure], NOISE * max(at(pair[measure], 0.9) for pair in noise)),
        )
        for measure in LEAST
    }


Compare = Callable[[str, str], Distances]


@pytest.fixture
def compare(see: Callable[..., list[Seen]], figures: dict[str, Any]) -> Compare:
    """Two servers, noted among the figures."""

    def between(one: str, other: str) -> Distances:
        distances = apart(*see(one, other))
        figures.setdefault("padding", {})[f"{one} / {other}"] = shown(distances)
        return distances

    return between


def assert_within(distances: Distances, bound: dict[str, tuple[float, float]]) -> None:
    assert max(distances["input"]) == 0, "the first layers did not take the same"
    for measure, (median, nine_of_ten) in bound.items():
        assert at(distances[measure], 0.5) <= median, measure
        assert at(distances[measure], 0.9) <= nine_of_ten, measure


def test_padded_on_one_rank_is_as_near_to_stock_as_stock_to_itself(compare: Compare, figures: dict[str, Any]) -> None:
    bound = bounds([compare("stock-eager", "stock-eager-again")])
    figures["padding_bounds_on_one_rank"] = bound
    away = compare("stock-eager", "padded")
    assert all(away[f"layer {layer}"] for layer in range(N_LAYERS)), "no prompt reached every layer with equal bits"
    assert_within(away, bound)


@pytest.mark.parametrize("name", PADDED[1:])
def test_padded_on_several_ranks_is_as_near_to_stock_as_stock_on_two_to_stock_on_one(
    compare: Compare, figures: dict[str, Any], name: str
) -> None:
    bound = bounds([compare("stock-eager", "stock-tp2")])
    figures["padding_bounds_on_several_ranks"] = bound
    away = [compare(stock, name) for stock in ("stock-eager", "stock-tp2")]
    for distances in away:
        assert_within(distances, bound)


def test_one_lost_group_of_one_layer_would_be_seen(compare: Compare) -> None:
    """Else the bounds above would say nothing. Against the wider ones: those of several ranks."""
    bound = bounds([compare("stock-eager", "stock-tp2")])
    away = compare("stock-eager", "dented")
    for measure, (_, nine_of_ten) in bound.items():
        assert at(away[measure], 0.5) > nine_of_ten, measure


@pytest.mark.parametrize(("name", "idle"), [("padded-tp2-16", 1), ("padded-tp3", 2)])
def test_a_rank_of_padding_alone_adds_exactly_nothing(see: Callable[..., list[Seen]], name: str, idle: int) -> None:
    """16 groups at two ranks, 12 at three: the eight of the checkpoint are on the ranks before the last."""
    (padded,) = see(name)
    for n_tokens in N_TOKENS:
        for first, n_rows in ((0, n_tokens), (n_tokens, 1)):
            for rank, shard in enumerate(padded.shards(first, n_rows)):
                adds = [bool(tensor.any()) for key, tensor in shard.items() if key.endswith(".partial")]
                assert adds == [rank != idle] * N_LAYERS


def test_the_draft_is_padded_as_the_model_is(server_of: Callable[[str], Server], figures: dict[str, Any]) -> None:
    """Attention of its three stages, in blocks that went in with the same bits."""
    import torch
    from safetensors.torch import load_file

    servers = [server_of(name) for name in ("stock-dspark", "padded-dspark")]
    for salt, n_tokens in enumerate(N_TOKENS):
        for server in servers:
            with server._open("/generate", request(prompt(n_tokens, salt), N_STEPS), timeout_s=280) as response:
                assert len(json.load(response)["output_ids"]) == N_STEPS
    folders = [server.ranks[0].directory / "tensors" for server in servers]
    one, other = ({path.name for path in folder.glob("draft-*.safetensors")} for folder in folders)
    found: dict[str, list[float]] = {}
    for name in sorted(one & other):
        a, b = (load_file(folder / name) for folder in folders)
        assert len(a) == 7, f"three stages and the last hidden states, but {sorted(a)}"
        stages = sorted(key for key in a if key.endswith(".took"))
        for took in stages:
            if torch.equal(a[took], b[took]):
                gave = took.replace(".took", ".gave")
                found.setdefault(gave, []).extend(rows_apart(a[gave], b[gave]))
        if torch.equal(a[stages[0]], b[stages[0]]):
            found.setdefault("hidden", []).extend(rows_apart(a["hidden"], b["hidden"]))
    figures["padding_of_the_draft"] = shown(found)
    assert len(found) == 4
    for measure, rows in found.items():
        assert at(rows, 0.5) <= LEAST["hidden" if measure == "hidden" else "attention"], measure


@pytest.mark.parametrize("name", PADDED)
def test_padded_and_stock_generate_the_same_tokens(
    see: Callable[..., list[Seen]], figures: dict[str, Any], name: str
) -> None:
    """A smoke test: on random weights two stock engines part ways after a while, too."""
    stock, again, padded = see("stock-eager", "stock-eager-again" if name == "padded" else "stock-tp2", name)

    def n_alike(other: Seen) -> int:
        pairs = zip(stock.tokens, other.tokens, strict=True)
        return sum(a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))

    alike = {other.server.kind.name: n_alike(other) for other in (again, padded)}
    figures.setdefault("padding_tokens", {}).update(alike | {"of": N_STEPS * len(N_TOKENS)})
    assert alike[name] > 0, "by chance one of 512 would agree"


@pytest.mark.parametrize("name", [*PADDED, "padded-dspark"])
def test_it_is_armed_and_says_what_it_padded(server_of: Callable[[str], Server], name: str) -> None:
    padded = server_of(name)
    groups = padded.kind.others["tp_pad"].get("force_groups", 12)
    for rank in range(padded.world_size):
        states = {report.role.value: report.adapters["tp_pad"].state for report in padded.reports(rank)}
        expected = {"launcher": State.ENGAGED, "scheduler": State.ENGAGED}
        assert states == (expected if rank else expected | {"detokenizer": State.OFF})
        log = padded.ranks[rank].log
        assert f"64 heads in 8 groups become {8 * groups} in {groups} for {padded.world_size} ranks" in log
        assert "not initialized" not in log and "not found in params_dict" not in log
