"""Sampling parameters that the engine takes and cannot compute with. Pure.

Tried with sglang 0.5.23 on its CPU: a stop token that is none, with `min_tokens`, ended it for everybody. A bias of
1e39 and a penalty of 1e-46 gave noise; on a GPU they were not tried.
"""

from __future__ import annotations

from .fields import BadRequest, Body

RANGES = {"temperature": (0, 100), "repetition_penalty": (0.01, 2)}
MAX_BIAS = 100
"""Beyond these a 32-bit number is zero or infinite, and probabilities are none. Source: OpenAI's API for the bias,
SGLang for the 2 and the 0; the others are a guess."""


def check(out: Body, vocabulary: int) -> None:
    """Raises BadRequest."""
    for name, (least, most) in RANGES.items():
        if name in out and not _is_between(out[name], least, most):
            raise BadRequest(f"{name} is not a number from {least} to {most}.", name)
    biases = out.get("logit_bias")
    if isinstance(biases, dict) and not all(_is_between(bias, -MAX_BIAS, MAX_BIAS) for bias in biases.values()):
        raise BadRequest(f"logit_bias holds what is not a number from -{MAX_BIAS} to {MAX_BIAS}.", "logit_bias")
    # SGLang counts from them into a row as long as the vocabulary, once any request of the batch has min_tokens.
    ids = out.get("stop_token_ids", [])
    if not isinstance(ids, list) or any(type(one) is not int or not 0 <= one < vocabulary for one in ids):
        raise BadRequest(f"stop_token_ids is not a list of token ids from 0 to {vocabulary - 1}.", "stop_token_ids")


def _is_between(value: object, least: float, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
