"""tp_pad on a GPU: 64 heads padded to 128 where nothing needs it, against the stock engine and its own repetition."""

from __future__ import annotations

from typing import Any

from dsv41_adapters.adapter import State

from tests.gpu.servers import prompt

N_TOP = 50
N_PROMPTS = 12


def logits(server: Any, n_tokens: int, salt: int) -> dict[int, float]:
    """Log-probabilities of the likeliest next tokens behind one prompt."""
    answer = server.ask(prompt(n_tokens, salt), 1, return_logprob=True, top_logprobs_num=N_TOP)
    (first,) = answer["meta_info"]["output_top_logprobs"]
    return {token: logprob for logprob, token, *_ in first}


def distances(one: Any, other: Any) -> list[float]:
    """Largest difference of a log-probability, by prompt, over the tokens that both name."""
    found = []
    for salt in range(N_PROMPTS):
        a, b = logits(one, 24 + 8 * salt, salt), logits(other, 24 + 8 * salt, salt)
        shared = a.keys() & b.keys()
        assert len(shared) >= N_TOP // 2, f"prompt {salt}: only {len(shared)} of {N_TOP} likeliest tokens in common"
        found.append(max(abs(a[token] - b[token]) for token in shared))
    return found


def test_padded_logits_are_as_near_as_the_stock_engine_is_to_itself(server_of: Any, figures: dict[str, Any]) -> None:
    stock, again, padded = (server_of(name) for name in ("stock-eager", "stock-eager-again", "padded"))
    noise, away = distances(stock, again), distances(stock, padded)
    foreign = abs(logits(stock, 40, 1).get(0, 0.0) - logits(stock, 40, 2).get(0, 0.0))
    figures["padding"] = {"stock_against_itself": noise, "padded_against_stock": away, "another_prompt": foreign}
    assert sorted(away)[N_PROMPTS // 2] <= max(4 * sorted(noise)[N_PROMPTS // 2], 0.05)
    assert max(away) <= max(4 * max(noise), 0.25)


def test_padded_and_stock_generate_the_same_tokens(server_of: Any, figures: dict[str, Any]) -> None:
    """A smoke test: on random weights two stock engines part ways after a while, too."""
    one, other, padded = (server_of(name) for name in ("stock-eager", "stock-eager-again", "padded"))
    tokens = [server.ask(prompt(40), 32)["output_ids"] for server in (one, other, padded)]
    alike = [sum(a == b for a, b in zip(tokens[0], t, strict=True)) for t in tokens[1:]]
    figures["padding_tokens"] = {"stock_again": alike[0], "padded": alike[1], "of": 32}
    assert alike[1] >= min(alike[0], 8)


def test_it_is_armed_and_says_what_it_padded(server_of: Any) -> None:
    padded = server_of("padded")
    states = {report.role: report.adapters["tp_pad"].state for report in padded.reports()}
    assert states["launcher"] is State.ENGAGED and states["scheduler"] is State.ENGAGED
    assert "64 heads in 8 groups become 128 in 16" in padded.ranks[0].log
