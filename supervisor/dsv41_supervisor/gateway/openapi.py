"""The OpenAPI document of the gateway's own surface."""

from __future__ import annotations

from typing import Any

from .. import __version__

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
_ANY = {"type": "object"}
_OPEN: list[dict[str, list[str]]] = [{}]
_EFFORT = {"type": ["string", "number"], "description": "none, a tier, 1 to 100, or 0 to 0.99."}
_TOKENS = {
    "type": "integer",
    "minimum": 1,
    "description": "Filled in when absent; clamped to the fleet's cap.",
}
_CHAT = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "model": {"type": "string"},
        "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role"]}},
        "stream": {"type": "boolean"},
        "max_tokens": _TOKENS,
        "max_completion_tokens": _TOKENS,
        "thinking": {"type": ["boolean", "object"], "description": "Wins over every other spelling."},
        "enable_thinking": {"type": "boolean"},
        "reasoning_effort": _EFFORT,
        "reasoning": {
            "type": "object",
            "properties": {"enabled": {"type": "boolean"}, "effort": _EFFORT},
        },
        "chat_template_kwargs": {
            "type": "object",
            "properties": {
                "thinking": {"type": "boolean"},
                "enable_thinking": {"type": "boolean"},
                "reasoning_effort": _EFFORT,
            },
        },
    },
}
_COMPLETION = {
    "type": "object",
    "required": ["prompt"],
    "properties": {
        "model": {"type": "string"},
        "prompt": {"type": ["string", "array"]},
        "stream": {"type": "boolean"},
        "max_tokens": _TOKENS,
    },
}
_FAILURES = {
    "400": "The request cannot be served as it stands; the message says what to send instead.",
    "401": "No API key, or a wrong one.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not declared as application/json.",
    "500": "The gateway failed.",
    "502": "The engine was lost while it answered.",
    "503": "The fleet is not ready; Retry-After says when to come back.",
}


def _json(what: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": what, "content": {"application/json": {"schema": schema}}}


def _failures(*statuses: str) -> dict[str, Any]:
    return {status: _json(_FAILURES[status], _ERROR) for status in statuses}


def _generate(what: str, schema: dict[str, Any]) -> dict[str, Any]:
    answer = _json(
        "The answer; with stream: true, server-sent events that end with [DONE] or an error event.", _ANY
    )
    answer["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    answer["headers"] = {
        name: {"schema": {"type": "string"}, "description": told}
        for name, told in (
            ("x-dsv41-thinking", "on or off, as it held for this request."),
            ("x-dsv41-effort", "Reasoning effort from 1 to 100, or default."),
            ("x-dsv41-max-tokens", "Token limit as it held for this request, or unlimited."),
            ("x-dsv41-max-tokens-source", "filled or clamped, when it is not what the request said."),
            ("x-dsv41-boot", "Which boot of the fleet answered."),
            ("x-request-id", "Name of this request."),
        )
    }
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {
        "post": {
            "summary": what,
            "requestBody": body,
            "responses": {"200": answer} | _failures("400", "401", "408", "413", "415", "500", "502", "503"),
        }
    }


def _get(
    what: str, answer: str, *, open_to_all: bool = False, failures: tuple[str, ...] = ()
) -> dict[str, Any]:
    """`open_to_all`: no key is needed; with one, the answer has details."""
    responses = {"200": _json(answer, _ANY)} | _failures(*failures, *(() if open_to_all else ("401",)))
    return {"get": {"summary": what, "responses": responses} | ({"security": _OPEN} if open_to_all else {})}


def document() -> dict[str, Any]:
    status = {"503": _json(_FAILURES["503"], _ANY)}
    health = _get("Whether a boot of the fleet serves, drains included", "It serves.", open_to_all=True)
    ready = _get("Whether new requests are taken", "They are.", open_to_all=True)
    for path in (health, ready):
        path["get"]["responses"] |= status
    metrics = _get("Counters of the gateway", "Prometheus text.")
    metrics["get"]["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    model = _get("One model", "It.")
    model["get"]["parameters"] = [
        {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    model["get"]["responses"]["404"] = _json("Another name than the served one.", _ERROR)
    return {
        "openapi": "3.1.0",
        "info": {"title": "dsv41 gateway", "version": __version__},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}],
        "paths": {
            "/v1/chat/completions": _generate("Chat", _CHAT),
            "/v1/completions": _generate("Text completion", _COMPLETION),
            "/v1/models": _get("The model this fleet serves", "A list of one."),
            "/v1/models/{model}": model,
            "/health": health,
            "/ready": ready,
            "/metrics": metrics,
            "/openapi.json": _get("This document", "It."),
        },
    }
