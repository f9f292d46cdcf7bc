"""`/v1/responses`: as SGLang can serve it, with nothing kept from one request to the next. Pure."""

from __future__ import annotations

import base64
import zlib

from .fields import BadRequest, Body, an_object, check_parts, flag, own_tools
from .policy import HEADROOM_TOKENS, Effective, Limits, cap, common, template_thinking

OWN_TOOLS: frozenset[str | None] = frozenset({"function", "custom", "namespace"})
"""Tools that the client runs."""

KEPT_STATE = {
    "previous_response_id": "answers are not kept here: send the whole conversation in input",
    "conversation": "conversations are not kept here: send the whole one in input",
    "prompt": "prompts are not kept here: send the text in instructions and input",
}

PACKED_THOUGHTS = "sglang-reasoning-v1."
MAX_THOUGHTS_BYTES = 8 << 20
"""Of all packed thoughts of a request, unpacked: twice what the longest context holds. SGLang unpacks each without a
limit, in memory that is the model's: 951 kB took 1.4 GB (measured). Source: responses_adapters.py, sglang 0.5.23."""


def create(body: Body, limits: Limits) -> tuple[Body, Effective]:
    """`/v1/responses`. The body given is not changed. Raises BadRequest."""
    out = common(body, limits)
    for name, why in KEPT_STATE.items():
        if name in out:
            raise BadRequest(f"{name} cannot be used: {why}.", name, "unsupported_field")
    if "request_id" in out:
        raise BadRequest("request_id is internal to the engine: leave it out.", "request_id", "unsupported_field")
    if flag(out, "background"):
        raise BadRequest(
            "background is true, but answers are not kept here: read this one as it is made, with stream.",
            "background",
            "unsupported_field",
        )
    out["store"] = False
    _check_input(out.get("input"))
    summary = an_object(out, "reasoning").get("summary")
    thinks = template_thinking(out, limits)
    if summary is not None:
        # An effort that is absent here would be read as "medium".
        out["reasoning"] = {"effort": None, "summary": summary}
    ignored = thinks.ignored + own_tools(out, OWN_TOOLS, "OpenAI's", "functions of your own")
    if out.get("truncation") == "auto":
        ignored += ("truncation",)  # SGLang shortens nothing: what is too long is a 400
    max_tokens, source = cap(out, limits, ("max_output_tokens",), absent=limits.ceiling)
    if max_tokens is not None:
        out["max_output_tokens"] = max_tokens + HEADROOM_TOKENS
    return out, Effective(flag(out, "stream"), max_tokens, source, thinks.on, thinks.budget, ignored)


def _check_input(given: object) -> None:
    if isinstance(given, str) and given:
        return
    if not isinstance(given, list) or not given:
        raise BadRequest("input is missing or empty: send text, or a list of items.", "input", "missing_field")
    left = MAX_THOUGHTS_BYTES
    for i, item in enumerate(given):
        where = f"input[{i}]"
        if not isinstance(item, dict):
            raise BadRequest(f"{where} is not an object.", where)
        left -= _unpacked(item.get("encrypted_content"), left + 1)
        if left < 0:
            at = f"{where}.encrypted_content"
            raise BadRequest(f"{at}: the packed thoughts have more than {MAX_THOUGHTS_BYTES} bytes: leave it out.", at)
        for name in ("content", "output"):
            check_parts(item.get(name), f"{where}.{name}")
            for j, part in enumerate(item[name] if isinstance(item.get(name), list) else ()):
                if "file_id" in part or part.get("type") == "input_file":
                    at = f"{where}.{name}[{j}]"
                    raise BadRequest(
                        f"{at} is a file. None are kept here, and none are read: send its text as input_text.",
                        at,
                        "unsupported_content",
                    )


def _unpacked(thoughts: object, at_most: int) -> int:
    """Bytes that the engine would unpack; it leaves out what cannot be."""
    if not isinstance(thoughts, str) or not thoughts.startswith(PACKED_THOUGHTS):
        return 0
    try:
        packed = base64.urlsafe_b64decode(thoughts[len(PACKED_THOUGHTS) :])
        return len(zlib.decompressobj().decompress(packed, at_most))
    except (ValueError, zlib.error):
        return 0
