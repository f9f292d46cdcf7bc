"""What each route takes, as JSON Schema: exactly what the policies look at. The rest goes to the engine as it is.

What is valid here is never refused by the gateway; the engine looks at more, such as the length of a prompt.
"""

from __future__ import annotations

from typing import Any

from .policy import MAX_ANSWERS, MAX_LOGPROBS, MAX_PROMPTS, MAX_STOP_CHARS, VOCABULARY
from .policy_messages import BLOCKS
from .policy_responses import OWN_TOOLS
from .policy_sampling import MAX_BIAS, RANGES
from .thinking import FALSE, TIER_BUDGETS, TRUE

Schema = dict[str, Any]


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}


def _body(required: tuple[str, ...], **properties: Schema) -> Schema:
    """A field that is null counts as absent."""
    kinds = {name: schema if name in required else _or_null(schema) for name, schema in properties.items()}
    return _object(required, **kinds)


def _or_null(schema: Schema) -> Schema:
    told = {name: schema[name] for name in ("description",) if name in schema}
    return {"anyOf": [{k: v for k, v in schema.items() if k not in told}, {"type": "null"}]} | told


def _text_or_list(items: Schema, least: int = 0) -> Schema:
    return {"anyOf": [{"type": "string", "minLength": least}, {"type": "array", "minItems": least, "items": items}]}


_FLAG: Schema = {"type": "boolean"}
_ANY: Schema = {"type": "object"}
_NAME = {"type": "string", "description": "Any: one fleet serves one model."}
_EFFORT = {
    "anyOf": [
        {"enum": ["none", *TIER_BUDGETS]},
        {"type": "integer", "minimum": 2, "maximum": 100},  # 1 too, but to JSON Schema that is 1.0, which may be 100 %
        {"type": "number", "minimum": 0, "maximum": 0.99},
    ],
    "description": "none, a tier, 1 to 100, or 0 to 0.99.",
}
_WORDS: Schema = {"enum": [*sorted(TRUE | FALSE)]}
_SWITCH = {
    "anyOf": [_FLAG, _WORDS, {"enum": [0, 1]}, _object(("type",), type=_WORDS)],
    "description": 'true, false, or {"type": "enabled"}.',
}
_TOKENS = {"type": "integer", "minimum": 1, "description": "Filled in when absent; clamped to the fleet's cap."}
_LOOSE_THINKING = {
    "thinking": _SWITCH | {"description": "Wins over every other spelling."},
    "enable_thinking": _SWITCH,
    "reasoning_effort": _EFFORT,
    "chat_template_kwargs": _body((), thinking=_SWITCH, enable_thinking=_SWITCH, reasoning_effort=_EFFORT),
}
_REASONING = _body((), enabled=_SWITCH, effort=_EFFORT, summary={"type": "string"})
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": _object(("role",), role={"type": "string"}, content=_or_null(_text_or_list(_ANY))),
}
_TEXT_BLOCK = _object(("type", "text"), type={"const": "text"}, text={"type": "string"})
_BASE64 = _object(("type",), type={"const": "base64"}) | {"not": {"required": ["url"]}}
_BLOCK = {
    "oneOf": [
        _object(("type",), type={"enum": sorted(BLOCKS - {"image", "tool_result"})}),
        _object(("type",), type={"const": "tool_result"}, content=_or_null(_text_or_list(_TEXT_BLOCK))),
        _object(("type", "source"), type={"const": "image"}, source=_BASE64),
    ]
}
_N: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_ANSWERS}
_BEST: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS}
_TEXT: Schema = {"type": "string", "maxLength": MAX_STOP_CHARS}
_STOP: Schema = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_ID: Schema = {"type": "integer", "minimum": 0, "maximum": VOCABULARY - 1}
_SAMPLING: dict[str, Schema] = {
    **{name: {"type": "number", "minimum": least, "maximum": most} for name, (least, most) in RANGES.items()},
    "logit_bias": {"additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS}},
    "stop_token_ids": {"type": "array", "items": _ID},
}
_STREAM = {"stream": _FLAG, "stream_options": _body((), include_usage=_FLAG)}
_CHAT = _body(
    ("messages",), model=_NAME, messages=_MESSAGES, max_tokens=_TOKENS, max_completion_tokens=_TOKENS,
    reasoning=_REASONING, n=_N, top_logprobs=_BEST, stop=_STOP, **_SAMPLING, **_STREAM,
    **_LOOSE_THINKING,
)  # fmt: skip
_IDS: Schema = {"type": "array", "minItems": 1, "items": _ID}
_TEXT_OR_IDS: Schema = {"anyOf": [{"type": "string"}, _IDS]}
_TEXTS: Schema = {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": _TEXT_OR_IDS}
_PROMPT: Schema = {"anyOf": [{"type": "string", "minLength": 1}, _IDS, _TEXTS]}
_COMPLETION = _body(
    ("prompt",), model=_NAME, prompt=_PROMPT, max_tokens=_TOKENS, n=_N, logprobs=_BEST, stop=_STOP,
    suffix={"const": ""}, **_SAMPLING, **_STREAM,
)  # fmt: skip
_RESPONSE = _body(
    ("input",),
    model=_NAME,
    input=_text_or_list(_ANY, least=1) | {"description": "The whole conversation: nothing is kept here."},
    instructions={"type": "string"},
    stream=_FLAG,
    max_output_tokens=_TOKENS,
    reasoning=_REASONING,
    top_logprobs=_BEST,
    stop=_STOP,
    temperature=_SAMPLING["temperature"],
    tools={
        "type": "array",
        "items": _object(("type",), type={"enum": sorted(filter(None, OWN_TOOLS))}),
        "description": "Others are named in x-dsv41-ignored; a request with no others is refused.",
    },
    **_LOOSE_THINKING,
)
_CONVERSATION = _MESSAGES | {
    "items": _object(("role",), role={"type": "string"}, content=_or_null(_text_or_list(_BLOCK)))
}
_COUNTED = {
    "model": _NAME,
    "messages": _CONVERSATION,
    "system": _text_or_list(_TEXT_BLOCK),
    "output_config": _body((), effort=_EFFORT),
    "tools": {
        "type": "array",
        "items": _object(("name",), type={"const": "custom"}, name={"type": "string"}, input_schema=_ANY),
        "description": "Others are named in x-dsv41-ignored; a request with no others is refused.",
    },
    **_LOOSE_THINKING,
}
_COUNT = _body(("messages",), **_COUNTED)
_MESSAGE = _body(
    ("messages",), **_COUNTED, stream=_FLAG, max_tokens=_TOKENS, stop_sequences={"type": "array", "items": _TEXT}
)
_TOKENIZE = {
    "oneOf": [
        _body(("prompt",), model=_NAME, prompt=_text_or_list({"type": "string"})) | {"not": {"required": ["messages"]}},
        _body(("messages",), model=_NAME, messages=_MESSAGES, **_LOOSE_THINKING) | {"not": {"required": ["prompt"]}},
    ]
}
REQUESTS: dict[str, tuple[str, Schema]] = {
    "/v1/chat/completions": ("Chat", _CHAT),
    "/v1/completions": ("Text completion", _COMPLETION),
    "/v1/responses": ("OpenAI's Responses, without anything kept", _RESPONSE),
    "/v1/messages": ("Anthropic's Messages", _MESSAGE),
    "/v1/messages/count_tokens": ("How many tokens a message's prompt has", _COUNT),
    "/tokenize": ("Token ids of a text, or of messages as a chat renders them", _TOKENIZE),
    "/v1/tokenize": ("The same as /tokenize", _TOKENIZE),
}
