"""engram_nvme, tp_pad and loop_abort in one server: captured, DSPARK, and captured on two and three ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dsv41_adapters.adapter import State

from tests.gpu.servers import Server, prompt, request

ServerOf = Callable[[str], Server]
TOGETHER = ("all", "all-dspark", "all-tp2", "all-tp3", "all-ep3")
SPECULATIVE = ("all-dspark", "all-ep3")
WORD = 346
"""A word of the tiny vocabulary (` capital`)."""
N_MOST = 3000


@pytest.mark.parametrize("name", TOGETHER)
def test_one_word_for_ever_is_stopped_and_other_requests_are_not(
    server_of: ServerOf, figures: dict[str, Any], name: str
) -> None:
    server = server_of(name)
    before = [server.counters(rank).get("loops_stopped", 0) for rank in range(server.world_size)]
    said = server.ask(prompt(40, 90), N_MOST, sampling={"logit_bias": {str(WORD): 100.0}})
    reason = said["meta_info"]["finish_reason"]
    figures.setdefault("loops", {})[name] = {"reason": reason, "n_tokens": len(said["output_ids"])}
    assert set(said["output_ids"]) == {WORD} and len(said["output_ids"]) < N_MOST
    assert reason["type"] == "stop" and reason["matched"].startswith("repetition: exact repetition from output token ")
    other = server.ask(prompt(40, 91), 48)
    assert other["meta_info"]["finish_reason"] == {"type": "length", "length": 48}
    counted = server.settled_counters()
    assert [c["loops_stopped"] - b for c, b in zip(counted, before, strict=True)] == [1] * server.world_size


@pytest.mark.parametrize("name", TOGETHER)
def test_rows_are_the_stock_tables_also_with_heads_padded(
    server_of: ServerOf, figures: dict[str, Any], name: str
) -> None:
    server = server_of(name)
    server.ask(prompt(600), 16)
    server.ask(prompt(300, 1), 250)
    modes = ("prefill", "verify" if name in SPECULATIVE else "decode")
    seen = {mode: server.n_seen(mode) for mode in modes}
    figures.setdefault("rows_compared", {})[name] = seen
    assert all(n >= 10_000 for n, _ in seen.values())
    assert server.n_different() == 0


@pytest.mark.parametrize("name", TOGETHER)
def test_every_process_of_every_rank_says_what_is_armed_in_it(
    server_of: ServerOf, figures: dict[str, Any], name: str
) -> None:
    server = server_of(name)
    server.ask(prompt(40), 4)
    expected = {
        "launcher": {"engram_nvme": State.OFF, "tp_pad": State.ENGAGED},
        "scheduler": {"engram_nvme": State.ENGAGED, "tp_pad": State.ENGAGED, "loop_abort": State.ENGAGED},
        "detokenizer": {"engram_nvme": State.OFF, "tp_pad": State.OFF, "loop_abort": State.OFF},
    }
    for rank in range(server.world_size):
        states = {
            report.role.value: {adapter: found.state for adapter, found in report.adapters.items()}
            for report in server.reports(rank)
        }
        figures.setdefault("armed", {})[f"{name} rank {rank}"] = {
            role: {adapter: state.value for adapter, state in of.items()} for role, of in states.items()
        }
        if rank > 0:  # text is made on the first rank alone
            states.setdefault("detokenizer", expected["detokenizer"])
        # Engaged where the server's own warm-up asks for a chat, as it does of a model that has vision.
        assert states["launcher"].pop("loop_abort") in (State.ARMED, State.ENGAGED)
        assert states == expected
        log = server.ranks[rank].log
        assert "not initialized" not in log and "not found in params_dict" not in log


@pytest.mark.parametrize("name", TOGETHER)
def test_the_first_token_is_the_stock_servers(server_of: ServerOf, figures: dict[str, Any], name: str) -> None:
    """A smoke test: random weights part ways when sums have another order; by chance none of twelve would agree."""
    stock, server = server_of("stock"), server_of(name)
    pairs = [[one.ask(prompt(24 + 8 * salt, salt), 1)["output_ids"] for one in (stock, server)] for salt in range(12)]
    n_alike = sum(one == other for one, other in pairs)
    figures.setdefault("first_tokens_alike_of_12", {})[name] = n_alike
    assert n_alike >= 6


def test_a_stream_is_told_why_it_ended(server_of: ServerOf) -> None:
    import json

    server = server_of("all")
    body = request(prompt(40, 92), N_MOST, stream=True, sampling={"logit_bias": {str(WORD): 100.0}})
    with server._open("/generate", body) as response:
        lines = [json.loads(line.removeprefix(b"data: ")) for line in response if line.startswith(b"data: {")]
    assert lines[-1]["meta_info"]["finish_reason"]["matched"].startswith("repetition: ")
