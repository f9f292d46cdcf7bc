"""`/v1/responses`: as SGLang can serve it, with nothing kept from one request to the next. Pure."""

from __future__ import annotations

from .fields import BadRequest, Body, an_object, check_parts, flag, own_tools
from .policy import HEADROOM_TOKENS, Effective, Limits, cap, common, template_thinking

OWN_TOOLS: frozenset[str | None] = frozenset({"function", "custom", "namespace"})
"""Tools that the client runs."""

KEPT_STATE = {
    "previous_response_id": "answers are not kept here: send the whole conversation in input",
    "conversation": "conversations are not kept here: send the whole one in input",
    "prompt": "prompts are not kept here: send the text in instructions and input",
}


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
    for i, item in enumerate(given):
        where = f"input[{i}]"
        if not isinstance(item, dict):
            raise BadRequest(f"{where} is not an object.", where)
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
