"""`/v1/messages`: Anthropic's requests, as SGLang can serve them; what it cannot do is told. Pure."""

from __future__ import annotations

from . import thinking
from .fields import BadRequest, Body, an_object, flag, messages, own_tools
from .policy import CapSource, Effective, Limits, cap, common

BLOCKS = frozenset({
    "text", "image", "tool_use", "tool_result", "tool_reference", "search_result", "thinking", "redacted_thinking",
})  # fmt: skip
"""Content blocks that the engine reads. Source: anthropic/protocol.py, sglang 0.5.23."""

OWN_TOOLS: frozenset[str | None] = frozenset({None, "custom"})

PROVIDER_ONLY = ("mcp_servers", "container")
"""Done by Anthropic's own servers; SGLang would leave them out without a word."""


def create(body: Body, limits: Limits) -> tuple[Body, Effective]:
    """`/v1/messages`. The body given is not changed. Raises BadRequest."""
    out, thinks, ignored = _read(body, limits)
    max_tokens, source = cap(out, limits, ("max_tokens",), absent=limits.ceiling)
    if max_tokens is None:
        raise BadRequest("max_tokens is missing: send a whole number.", "max_tokens", "missing_field")
    held = Effective(flag(out, "stream"), max_tokens, source, thinks.on, _held(thinks), ignored)
    return out, held


def count(body: Body, limits: Limits) -> tuple[Body, Effective]:
    """`/v1/messages/count_tokens`: the same prompt, nothing generated. Raises BadRequest."""
    out, thinks, ignored = _read(body, limits)
    return out, Effective(False, None, CapSource.NONE, thinks.on, _held(thinks), ignored, generates=False)


def _read(body: Body, limits: Limits) -> tuple[Body, thinking.Thinking, tuple[str, ...]]:
    out = common(body, limits)
    for name in PROVIDER_ONLY:
        if name in out:
            raise BadRequest(f"{name} needs Anthropic's servers: leave it out.", name, "unsupported_field")
    for i, message in enumerate(messages(out)):
        _check_blocks(message.get("content"), f"messages[{i}].content")
    _check_blocks(out.get("system"), "system")
    thinks = thinking.take(out, limits.default_thinking, limits.default_effort)
    # `adaptive` is SGLang's word without a budget, which it takes only from 1024 up and then does not hold.
    out["thinking"] = {"type": "adaptive" if thinks.on else "disabled"}
    config = dict(an_object(out, "output_config"))
    config.pop("effort", None)
    if (tier := thinks.tier()) is not None:
        config["effort"] = tier
    for name in ("output_config", "chat_template_kwargs", "reasoning"):
        out.pop(name, None)
    if config:
        out["output_config"] = config
    dropped = own_tools(out, OWN_TOOLS, "Anthropic's", "tools of your own, with name and input_schema")
    return out, thinks, thinks.ignored + dropped


def _held(thinks: thinking.Thinking) -> int | None:
    """This route knows tiers only: the budget that the nearest one stands for."""
    tier = thinks.tier()
    return None if tier is None else thinking.TIER_BUDGETS[tier]


def _check_blocks(content: object, where: str) -> None:
    if not isinstance(content, list):
        return
    for i, block in enumerate(content):
        at = f"{where}[{i}]"
        if not isinstance(block, dict):
            raise BadRequest(f"{at} is not an object with a type.", at)
        kind = block.get("type")
        if not isinstance(kind, str) or kind not in BLOCKS:  # a list has no hash
            raise BadRequest(
                f"{at} is of type {str(kind)[:40]}, which this engine cannot read: send text, or an image as base64.",
                at,
                "unsupported_content",
            )
        if kind == "image":
            _check_source(block.get("source"), f"{at}.source")
        _check_blocks(block.get("content") if kind == "tool_result" else None, f"{at}.content")


def _check_source(source: object, where: str) -> None:
    """The engine would fetch any URL and open any path, with its own rights."""
    if not isinstance(source, dict) or source.get("type") != "base64" or "url" in source:
        raise BadRequest(
            f"{where} is not of type base64. Nothing is fetched: send the image itself.", where, "unsupported_url"
        )
