"""The OpenAPI document of the gateway's own surface."""

from __future__ import annotations

from typing import Any

from .. import __version__
from . import loops
from .openapi_requests import REQUESTS
from .protocols import Protocol
from .routes import ROUTES, Route


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


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
_ANTHROPIC_ERROR = _object(
    ["type", "error"],
    type={"const": "error"},
    error=_object(["type", "message"], type={"type": "string"}, message={"type": "string"}, code={"type": "string"}),
)
_ANY = {"type": "object"}
_OPEN: list[dict[str, list[str]]] = [{}]
_FAILURES = {
    "400": "The request cannot be served as it stands; the message says what to send instead.",
    "401": "No API key, or a wrong one.",
    "403": "This key is for other models.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not declared as application/json, or is encoded in a way that is not read here.",
    "429": "A limit of this key is used up; Retry-After says when there is room again.",
    "500": "The gateway failed.",
    "502": "The engine was lost while it answered.",
    "503": "The fleet is not ready; Retry-After says when to come back.",
}


def _json(what: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": what, "content": {"application/json": {"schema": schema}}}


def _failures(*statuses: str, error: dict[str, Any] = _ERROR) -> dict[str, Any]:
    return {status: _json(_FAILURES[status], error) for status in statuses}


_HEADERS = {
    "x-dsv41-thinking": "on or off, as it held for this request.",
    "x-dsv41-effort": "Reasoning effort from 1 to 100, or default.",
    "x-dsv41-max-tokens": "Token limit as it held for this request, or unlimited.",
    "x-dsv41-max-tokens-source": "filled or clamped, when it is not what the request said.",
    "x-dsv41-ignored": "What was asked for and is not done here.",
    "x-dsv41-finish": "Of an answer in one piece: stop, length, tool_calls, repetition (and at which token), error.",
    "x-dsv41-loop": "Of an answer in one piece with a guard: where a loop is, its period and how often it comes.",
    "x-dsv41-loop-guard": "observe or stop, as the request asked.",
    "x-dsv41-queue-position": "How many waited when it came, itself included; absent when it never waited.",
    "x-dsv41-waited-s": "Seconds it waited; absent from a stream that began while it waited.",
    "x-dsv41-boot": "Which boot of the fleet answered; absent from a stream that began while it waited.",
    "x-request-id": "Name of this request, also in the engine.",
}
_LOOP_GUARD = {
    "name": loops.HEADER,
    "in": "header",
    "description": "Look for a text that repeats itself: tell it, or end the stream with an error (code repetition).",
    "schema": {"enum": ["observe", "stop", "off"]},
}


def _post(to: Route) -> dict[str, Any]:
    what, schema = REQUESTS[to.path]
    answer = _json("The answer.", _ANY)
    if to.generates:
        answer["description"] = (
            "The answer; with stream: true, the protocol's events. The last one is never missing. "
            "A stream that waits begins after 15 s: what is refused then is its error event. "
            "One that a loop ended has the comment `: x-dsv41-finish repetition; token=N`."
        )
        answer["content"]["text/event-stream"] = {}  # its events are the protocol's
    answer["headers"] = {
        name: {"schema": {"type": "string"}, "description": told}
        for name, told in _HEADERS.items()
        if to.generates or name in ("x-dsv41-boot", "x-request-id", "x-dsv41-thinking", "x-dsv41-effort")
    }
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    error = _ANTHROPIC_ERROR if to.protocol is Protocol.ANTHROPIC else _ERROR
    failures = _failures("400", "401", "403", "408", "413", "415", "429", "500", "502", "503", error=error)
    post = {"summary": what, "requestBody": body, "responses": {"200": answer} | failures}
    return {"post": post | ({"parameters": [_LOOP_GUARD]} if to.generates else {})}


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
    metrics = _get("Counters of the gateway; on the management address only", "Prometheus text.")
    metrics["get"]["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    model = _get("One model", "It.")
    model["get"]["parameters"] = [
        {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    model["get"]["responses"]["403"] = _json(_FAILURES["403"], _ERROR)
    model["get"]["responses"]["404"] = _json("Another name than the served one.", _ERROR)
    return {
        "openapi": "3.1.0",
        "info": {"title": "dsv41 gateway", "version": __version__},
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
        },
        "security": [{"key": []}, {"x-api-key": []}],
        "paths": {
            **{to.path: _post(to) for to in ROUTES},
            "/v1/models": _get("The model this fleet serves", "A list of one; empty for a key of other models."),
            "/v1/models/{model}": model,
            "/health": health,
            "/ready": ready,
            "/metrics": metrics,
            "/openapi.json": _get("This document", "It."),
        },
    }
