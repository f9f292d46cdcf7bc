"""What a request becomes before the engine sees it. Pure: body and limits in, body and what holds for it out.

The engine reads some spellings, ignores others without a word, and coerces strings to numbers. Here every
spelling that clients use is read, one normal form is written, and what is ambiguous is a clear 400. Twice is
the same as once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Any

Body = dict[str, Any]

COMPLETIONS_DEFAULT_TOKENS = 16
"""What `/v1/completions` gives when no limit is named. Source: OpenAI's API; protocol.py, sglang 0.5.23."""

TIER_BUDGETS: Mapping[str, int] = {
    "minimal": 50,
    "low": 50,
    "medium": 75,
    "high": 75,
    "xhigh": 75,
    "max": 100,
    "ultra": 100,
}
"""Effort tiers and the budget (1 to 100) V4.1 is told. Source: prompts rendered by deepseek-recipe 0.2.0."""

ENGINE_ONLY = frozenset({
    "bootstrap_host", "bootstrap_port", "bootstrap_room",  # make the engine connect elsewhere
    "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank", "priority",
    "custom_logit_processor",  # code to run in the engine
    "lora_path", "rid", "session_params", "session_id", "custom_labels",
})  # fmt: skip
"""Fields for SGLang's own router and operator, not for users. Source: protocol.py, sglang 0.5.23."""

_TOO_LONG = re.compile(
    r"maximum context length of (\d+) tokens.*?(\d+) tokens from the input messages", re.DOTALL
)
_MEDIA_PARTS = ("image_url", "video_url", "audio_url")
_TRUE = frozenset({"true", "yes", "on", "1", "enabled", "adaptive", "auto"})
_FALSE = frozenset({"false", "no", "off", "0", "disabled", "none"})


class BadRequest(ValueError):
    """The request cannot be served as it stands: 400, with the field and what to send instead."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code


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

    def headers(self) -> dict[str, str]:
        out = {"x-dsv41-max-tokens": "unlimited" if self.max_tokens is None else str(self.max_tokens)}
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
    out = _common(body, limits)
    out["messages"] = _messages(out.get("messages"))
    thinking, effort = _reasoning(out, limits)
    max_tokens, source = _cap(out, limits, ("max_completion_tokens", "max_tokens"), absent=limits.ceiling)
    return out, Effective(_stream(out), max_tokens, source, thinking, effort)


def completions(body: Body, limits: Limits) -> tuple[Body, Effective]:
    """`/v1/completions`: no template, so no thinking. The body given is not changed. Raises BadRequest."""
    out = _common(body, limits)
    if not out.get("prompt"):
        raise BadRequest(
            "prompt is missing or empty: send text, or a list of token ids.", "prompt", "missing_field"
        )
    ceiling = (
        COMPLETIONS_DEFAULT_TOKENS
        if limits.ceiling is None
        else min(COMPLETIONS_DEFAULT_TOKENS, limits.ceiling)
    )
    max_tokens, source = _cap(out, limits, ("max_tokens",), absent=ceiling)
    return out, Effective(_stream(out), max_tokens, source)


def with_max_tokens(body: Body, max_tokens: int) -> Body:
    """The same normalised body with another token limit."""
    return body | {name: max_tokens for name in ("max_completion_tokens", "max_tokens") if name in body}


def _common(body: Body, limits: Limits) -> Body:
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
    n = out.get("n")
    if n is not None:
        out["n"] = _count(n, "n")
    return out


def _stream(out: Body) -> bool:
    stream = out.get("stream", False)
    if not isinstance(stream, bool):
        # The engine would take "true" for true and stream to a client that we answer in one piece.
        raise BadRequest("stream is neither true nor false.", "stream")
    return stream


def _messages(messages: object) -> list[Any]:
    if not isinstance(messages, list) or not messages:
        raise BadRequest(
            "messages is missing or empty: send at least one message.", "messages", "missing_field"
        )
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: object, where: str) -> Body:
    if not isinstance(message, dict):
        raise BadRequest(f"{where} is not an object with role and content.", where)
    role = message.get("role")
    if not isinstance(role, str):
        raise BadRequest(f"{where}.role is missing or not a string.", f"{where}.role", "missing_field")
    content = message.get("content")
    if isinstance(content, list):
        for i, part in enumerate(content):
            _check_part(part, f"{where}.content[{i}]")
    # V4.1's encoding has no developer role; OpenAI's clients mean the system prompt by it.
    return message | {"role": "system"} if role.lower() == "developer" else message


def _check_part(part: object, where: str) -> None:
    """The engine would fetch any URL and open any path, with its own rights: only data inside the request."""
    if not isinstance(part, dict):
        raise BadRequest(f"{where} is not an object with a type.", where)
    for kind in _MEDIA_PARTS:
        media = part.get(kind)
        if media is None:
            continue
        url = media.get("url") if isinstance(media, dict) else media
        if not isinstance(url, str) or not url[:5].lower() == "data:":
            raise BadRequest(
                f"{where}.{kind} is not a data: URL. Nothing is fetched: send the content itself, base64.",
                f"{where}.{kind}",
                "unsupported_url",
            )


def _reasoning(out: Body, limits: Limits) -> tuple[bool, int | None]:
    """Read every spelling, write `chat_template_kwargs.thinking` (and its twin) and at most one effort.

    `thinking` wins over `enable_thinking`, which wins over `reasoning.enabled`, which wins over an effort.
    Effort in chat_template_kwargs wins over `reasoning.effort`, which wins over `reasoning_effort`: the
    engine's own order.
    """
    kwargs = dict(_object(out, "chat_template_kwargs"))
    reasoning = _object(out, "reasoning")
    nested = [(reasoning, name, "reasoning.") for name in ("effort", "reasoning_effort")]
    efforts = [(kwargs, "reasoning_effort", "chat_template_kwargs."), *nested, (out, "reasoning_effort", "")]
    effort: int | str | None = None
    for holder, name, prefix in reversed(efforts):  # each is checked, the first one holds
        if holder.get(name) is not None:
            effort = read_effort(holder[name], prefix + name)
    switches = [
        (kwargs, "thinking", "chat_template_kwargs."), (out, "thinking", ""),
        (kwargs, "enable_thinking", "chat_template_kwargs."), (out, "enable_thinking", ""),
        (reasoning, "enabled", "reasoning."), (reasoning, "enable", "reasoning."),
    ]  # fmt: skip
    thinking: bool | None = None
    for holder, name, prefix in reversed(switches):
        if holder.get(name) is not None:
            thinking = _switch(holder[name], prefix + name)
    if effort is None:
        effort = limits.default_effort
    if thinking is None:
        thinking = limits.default_thinking if effort is None else effort != "none"
    for name in ("thinking", "enable_thinking", "reasoning", "reasoning_effort"):
        out.pop(name, None)
    kwargs.pop("reasoning_effort", None)
    kwargs["thinking"] = kwargs["enable_thinking"] = thinking
    budget = effort if isinstance(effort, int) and thinking else None
    if budget is not None:
        # Only here does the engine take a whole number from 1 to 100.
        kwargs["reasoning_effort"] = budget
    out["chat_template_kwargs"] = kwargs
    return thinking, budget


def _object(out: Body, name: str) -> Body:
    value = out.get(name, {})
    if not isinstance(value, dict):
        raise BadRequest(f"{name} is not an object.", name)
    return value


def _switch(value: object, where: str) -> bool:
    if isinstance(value, dict):  # {"type": "enabled", "budget_tokens": …}
        value, where = value.get("type"), f"{where}.type"
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise BadRequest(f'{where} is neither on nor off: send true, false, or {{"type": "enabled"}}.', where)


def read_effort(value: object, where: str) -> int | str:
    """A budget from 1 to 100, or "none". Raises BadRequest."""
    if isinstance(value, str):
        word = value.strip().lower()
        if word == "none":
            return word
        if word in TIER_BUDGETS:
            return TIER_BUDGETS[word]
        try:
            value = float(word) if "." in word else int(word)
        except ValueError:
            value = None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100:
        return max(1, value)
    if isinstance(value, float) and 0.0 <= value <= 0.99:
        return max(1, round(value * 100))
    raise BadRequest(
        f"{where} is not an effort: send none, {', '.join(TIER_BUDGETS)}, a whole number from 1 to 100, "
        "or a fraction from 0 to 0.99.",
        where,
    )


def _count(value: object, where: str) -> int:
    """A whole number from 1. The engine takes 0 for "no limit", "100" for 100 and true for 1."""
    if isinstance(value, float) and isfinite(value) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadRequest(f"{where} is not a whole number from 1 up.", where)
    return value


def _cap(
    out: Body, limits: Limits, names: tuple[str, ...], absent: int | None
) -> tuple[int | None, CapSource]:
    """Fill in or clamp the token limit. The first name given wins; all of `names` carry the result."""
    asked = [_count(out[name], name) for name in names if name in out]
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
