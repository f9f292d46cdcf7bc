"""What a request becomes before the engine sees it. Pure: body and limits in, body and what holds for it out.

The engine reads some spellings, ignores others without a word, and coerces strings to numbers. Here every
spelling that clients use is read, one normal form is written, and what is ambiguous is a clear 400. Twice is
the same as once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from . import policy_sampling, thinking
from .fields import BadRequest, Body, an_object, check_parts, count, flag, messages, up_to
from .thinking import TIER_BUDGETS, read_effort

__all__ = ["TIER_BUDGETS", "BadRequest", "Body", "read_effort"]

COMPLETIONS_DEFAULT_TOKENS = 16
"""What `/v1/completions` gives when no limit is named. Source: OpenAI's API; protocol.py, sglang 0.5.23."""

ENGINE_ONLY = frozenset({
    "bootstrap_host", "bootstrap_port", "bootstrap_room",  # make the engine connect elsewhere
    "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank", "priority",
    "custom_logit_processor",  # code to run in the engine
    "stop_regex",  # matched between two tokens of everybody: a bad one hung the engine
    "lora_path", "rid", "session_params", "session_id", "custom_labels",
})  # fmt: skip
"""Fields for SGLang's own router and operator, not for users. Source: protocol.py, sglang 0.5.23."""

MAX_ANSWERS = 128
MAX_PROMPTS = 2048
MAX_LOGPROBS = 20
MAX_TOP_K = (1 << 31) - 1
"""Of one request. Source: OpenAI's API, whose limits on `n` and `top_logprobs` these are; the prompts are a guess."""
VOCABULARY = 129_280
"""Token ids of DeepSeek-V4.1-Flash. Source: its config.json. The demo's model has fewer, and this is no help there."""
MAX_STOP_CHARS = 256
"""Of one stop text. SGLang compares each of its beginnings between two tokens of everybody: one of 100,000 characters
took 0.4 s a token (its loop, measured alone), and a request may have 32. Its own limit on `stop_regex` is this one."""

HEADROOM_TOKENS = 2
"""SGLang takes so many off `max_output_tokens`. Source: `to_sampling_params` in openai/protocol.py, sglang 0.5.23."""

_CAP_FIELDS = {"max_completion_tokens": 0, "max_tokens": 0, "max_output_tokens": HEADROOM_TOKENS}
_TOO_LONG = re.compile(
    r"maximum context length of (\d+) tokens.*?(\d+) tokens from the input messages", re.DOTALL
)


class CapSource(StrEnum):
    """Where the token limit of a request comes from."""

    CLIENT = "client"
    CLAMPED = "clamped"
    FILLED = "filled"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the fleet allows. `max_tokens_cap` 0 means that nothing is filled in or clamped."""

    served_model_name: str
    context_length: int
    max_tokens_cap: int = 32768
    default_thinking: bool = False
    default_effort: int | str | None = None
    """For a request that names none: a budget, or "none" for no thinking unless it is switched on."""

    @property
    def ceiling(self) -> int | None:
        """Most completion tokens of one choice, None when the cap is off. The prompt is one at least."""
        return min(self.max_tokens_cap, self.context_length - 1) if self.max_tokens_cap else None


@dataclass(frozen=True, slots=True)
class Effective:
    """What holds for a request after policy; told to the client in response headers."""

    stream: bool
    max_tokens: int | None
    cap_source: CapSource
    thinking: bool | None = None
    effort: int | None = None
    ignored: tuple[str, ...] = ()
    """What the request asked for and the engine does not do, where that leaves an answer worth having."""
    generates: bool = True

    def headers(self) -> dict[str, str]:
        out = {"x-dsv41-ignored": ", ".join(self.ignored)} if self.ignored else {}
        if self.generates:
            out["x-dsv41-max-tokens"] = "unlimited" if self.max_tokens is None else str(self.max_tokens)
        if self.cap_source in (CapSource.CLAMPED, CapSource.FILLED):
            out["x-dsv41-max-tokens-source"] = self.cap_source
        if self.thinking is not None:
            out["x-dsv41-thinking"] = "on" if self.thinking else "off"
            if self.thinking:
                out["x-dsv41-effort"] = "default" if self.effort is None else str(self.effort)
        return out


Policy = Callable[[Body, Limits], tuple[Body, Effective]]


def chat(body: Body, limits: Limits) -> tuple[Body, Effective]:
    """`/v1/chat/completions`. The body given is not changed. Raises BadRequest."""
    out = common(body, limits)
    out["messages"] = _messages(out)
    thinks = template_thinking(out, limits)
    ignored = thinks.ignored
    if (stream := flag(out, "stream")) and flag(out, "return_token_ids"):
        # SGLang refuses it in a stream, and llama-benchy always sends it. Source: serving_chat.py, sglang 0.5.23.
        del out["return_token_ids"]
        ignored += ("return_token_ids",)
    max_tokens, source = cap(out, limits, ("max_completion_tokens", "max_tokens"), absent=limits.ceiling)
    return out, Effective(stream, max_tokens, source, thinks.on, thinks.budget, ignored)


def completions(body: Body, limits: Limits) -> tuple[Body, Effective]:
    """`/v1/completions`: no template, so no thinking. The body given is not changed. Raises BadRequest."""
    out = common(body, limits)
    if not out.get("prompt"):
        raise BadRequest(
            "prompt is missing or empty: send text, or a list of token ids.", "prompt", "missing_field"
        )
    _check_prompt(out["prompt"], "prompt")
    ceiling = (
        COMPLETIONS_DEFAULT_TOKENS
        if limits.ceiling is None
        else min(COMPLETIONS_DEFAULT_TOKENS, limits.ceiling)
    )
    max_tokens, source = cap(out, limits, ("max_tokens",), absent=ceiling)
    # SGLang knows both fields and uses neither.
    if out.get("suffix"):
        raise BadRequest(
            "suffix is not read by this engine, which only goes on from a prompt's end: leave it out.",
            "suffix",
            "unsupported_field",
        )
    n = out.get("n", 1)
    ignored = ("best_of",) if out.get("best_of", n) != n else ()
    return out, Effective(flag(out, "stream"), max_tokens, source, ignored=ignored)


def tokenize(body: Body, limits: Limits) -> tuple[Body, Effective]:
    """`/tokenize`: of a text as it is, or of messages as a chat would render them. Raises BadRequest."""
    out = common(body, limits)
    if ("prompt" in out) == ("messages" in out):
        raise BadRequest("send either prompt or messages, and not both.", "prompt", "missing_field")
    on = effort = None
    if "messages" in out:
        out["messages"] = _messages(out)
        thinks = template_thinking(out, limits)
        on, effort = thinks.on, thinks.budget
    return out, Effective(False, None, CapSource.NONE, on, effort, generates=False)


def with_max_tokens(body: Body, max_tokens: int) -> Body:
    """The same normalised body with another token limit."""
    return body | {name: max_tokens + more for name, more in _CAP_FIELDS.items() if name in body}


def with_usage(body: Body) -> tuple[Body, bool]:
    """The same streamed request with its usage at the end, and whether that is a surprise to the client."""
    options = an_object(body, "stream_options")
    asked = flag(options, "include_usage") if options.get("include_usage") is not None else False
    return body | {"stream_options": options | {"include_usage": True}}, not asked


def common(body: Body, limits: Limits) -> Body:
    """A shallow copy without nulls, for this fleet's model; refuses what no user may send."""
    for name, value in body.items():
        if name in ENGINE_ONLY and value is not None:
            raise BadRequest(
                f"{name} is internal to the engine and not accepted here: leave it out.",
                name,
                "unsupported_field",
            )
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise BadRequest("model is not a string.", "model")
    out = {name: value for name, value in body.items() if value is not None}
    # One fleet serves one model. Also keeps SGLang from reading `name:adapter` as a LoRA path.
    out["model"] = limits.served_model_name
    _check_size(out)
    policy_sampling.check(out, VOCABULARY)
    return out


def _check_size(out: Body) -> None:
    """What the engine would do without a limit, in the process that every request runs in: lists `n` times as long, and
    the best of more tokens than there are, at which it ends.

    Source: sglang 0.5.23 on its CPU: `n` of 100,000 hung it; `top_logprobs` of a million, `top_k` above 32 bits and a
    token id above the vocabulary ended it, for everybody.
    """
    if "n" in out:
        out["n"] = count(out["n"], "n")
        if out["n"] > MAX_ANSWERS:
            raise BadRequest(f"n is above {MAX_ANSWERS}: send more requests.", "n")
    for name in ("top_logprobs", "logprobs"):  # the latter a number on /v1/completions, a switch elsewhere
        if not isinstance(out.get(name, False), bool):
            out[name] = up_to(out[name], MAX_LOGPROBS, name)
    for name in ("prompt", "input_ids"):
        if name in out:
            out[name] = _whole(out[name])
    if "input_ids" in out:  # SGLang's own, in a chat instead of its messages
        _check_prompt(out["input_ids"], "input_ids")
    if out.get("top_k", -1) != -1:
        out["top_k"] = up_to(out["top_k"], MAX_TOP_K, "top_k")
    prompts = out.get("prompt")
    many = isinstance(prompts, list) and prompts and not isinstance(prompts[0], int)
    if many and len(prompts) * out.get("n", 1) > MAX_PROMPTS:
        raise BadRequest(f"prompt asks for more than {MAX_PROMPTS} answers: send more requests.", "prompt")
    for name in ("stop", "stop_sequences"):
        stops = out.get(name)
        for stop in stops if isinstance(stops, list) else [stops]:
            if isinstance(stop, str) and len(stop) > MAX_STOP_CHARS:
                told = f"{name} holds a text of more than {MAX_STOP_CHARS} characters: send its beginning."
                raise BadRequest(told, name)


def _whole(prompt: object) -> object:
    """Token ids written as 5.0 are 5, to JSON Schema and to the engine."""
    if not isinstance(prompt, list):
        return prompt
    return [_whole_ids(one) if isinstance(one, list) else one for one in _whole_ids(prompt)]


def _whole_ids(ids: list[Any]) -> list[Any]:
    if float not in set(map(type, ids)):
        return ids
    return [int(one) if isinstance(one, float) and one.is_integer() else one for one in ids]


def _check_prompt(prompt: object, where: str) -> None:
    """A text, or token ids, or a list of such."""
    many = isinstance(prompt, list) and prompt and type(prompt[0]) is not int
    for one in prompt if many else [prompt]:
        if isinstance(one, str):
            continue
        if not isinstance(one, list) or set(map(type, one)) != {int} or min(one) < 0 or max(one) >= VOCABULARY:
            told = f"{where} is neither text nor a list of token ids from 0 to {VOCABULARY - 1}, nor a list of such."
            raise BadRequest(told, where)


def template_thinking(out: Body, limits: Limits) -> thinking.Thinking:
    """Reads every spelling, writes the one that the chat template is given."""
    asked = thinking.take(out, limits.default_thinking, limits.default_effort)
    out.pop("reasoning", None)
    out["chat_template_kwargs"] |= asked.template_kwargs()
    return asked


def _messages(out: Body) -> list[Any]:
    given = messages(out)
    for i, message in enumerate(given):
        check_parts(message.get("content"), f"messages[{i}].content")
    # V4.1's encoding has no developer role; OpenAI's clients mean the system prompt by it.
    return [m | {"role": "system"} if m["role"].lower() == "developer" else m for m in given]


def cap(
    out: Body, limits: Limits, names: tuple[str, ...], absent: int | None
) -> tuple[int | None, CapSource]:
    """Fill in or clamp the token limit. The first name given wins; all of `names` carry the result."""
    asked = [count(out[name], name) for name in names if name in out]
    ceiling = limits.ceiling
    if not asked:
        max_tokens, source = absent, CapSource.NONE if absent is None else CapSource.FILLED
    elif ceiling is not None and asked[0] > ceiling:
        max_tokens, source = ceiling, CapSource.CLAMPED
    else:
        max_tokens, source = asked[0], CapSource.CLIENT
    if "min_tokens" in out:
        _check_min_tokens(out, max_tokens)
    if max_tokens is not None:
        out |= dict.fromkeys(names, max_tokens)
    return max_tokens, source


def _check_min_tokens(out: Body, max_tokens: int | None) -> None:
    least = out["min_tokens"]
    if isinstance(least, bool) or not isinstance(least, int) or least < 0:
        raise BadRequest("min_tokens is not a whole number from 0 up.", "min_tokens")
    if max_tokens is not None and least > max_tokens:
        raise BadRequest(
            f"min_tokens is {least}, but this request gets at most {max_tokens} tokens.", "min_tokens"
        )


def room_left(refusal: str) -> int | None:
    """Completion tokens that fit behind this prompt, from the engine's refusal; None if it says otherwise.

    The engine knows the prompt's length, we do not; it refuses before it starts, at the cost of tokenising.
    Source: `_validate_one_request` in tokenizer_manager.py, sglang 0.5.23.
    """
    match = _TOO_LONG.search(refusal)
    room = int(match[1]) - int(match[2]) if match else 0
    return room if room > 0 else None
