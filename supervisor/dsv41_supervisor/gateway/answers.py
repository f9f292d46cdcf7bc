"""Error answers in the client's protocol, and the reshaping of the engine's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any

from aiohttp import web

from .protocols import Protocol, error_body

MAX_UPSTREAM_MESSAGE = 2000
MAX_VALIDATION_ERRORS = 3
TOO_LONG = "context_length_exceeded"
"""OpenAI's code for a prompt that does not fit; agents shorten their history when they see it."""
MESSAGES_RETRY_AFTER_S = 60.0
"""Claude Code waits as long as this, ten times, but gives up at once when it is told 90 s (2.1.328, tried 2026-11-30).
Chat keeps the whole estimate: OpenCode asks again five times only, and waits as long as it is told."""

_TRACE = "\n\n  File "
_DOES_NOT_FIT = re.compile(r"(?:maximum context length|model's context length)")
_VALIDATION = re.compile(r"'loc': \(([^)]*)\), 'msg': (['\"])(.*?)\2(?:, '(?:input|ctx|url)'|\})")


@dataclass(frozen=True, slots=True)
class Failure:
    """One error answer: status, what to say, and when to come back."""

    status: int
    message: str
    type: str
    code: str
    param: str | None = None
    retry_after_s: float | None = None

    def payload(self, protocol: Protocol = Protocol.OPENAI) -> dict[str, Any]:
        message = self.message
        if protocol is Protocol.ANTHROPIC and self.code == TOO_LONG:
            message = f"prompt is too long: {message}"  # the words by which Claude Code knows that it must compact
        return error_body(
            protocol, status=self.status, message=message, kind=self.type, code=self.code, param=self.param
        )

    def headers(self, protocol: Protocol = Protocol.OPENAI) -> dict[str, str]:
        if self.retry_after_s is None:
            return {}
        capped = protocol is Protocol.ANTHROPIC and self.status >= 500
        seconds = min(self.retry_after_s, MESSAGES_RETRY_AFTER_S) if capped else self.retry_after_s
        return {"Retry-After": str(max(1, ceil(seconds)))}

    def response(
        self, headers: dict[str, str] | None = None, protocol: Protocol = Protocol.OPENAI
    ) -> web.Response:
        # Claude Code asks on with the same key, for minutes and without a word, unless it is told not to.
        refused = {"WWW-Authenticate": "Bearer", "x-should-retry": "false"}
        extra = refused if self.status == 401 else {}
        return web.json_response(
            self.payload(protocol), status=self.status, headers=(headers or {}) | self.headers(protocol) | extra
        )


def bad_request(
    message: str, param: str | None = None, code: str = "invalid_value", status: int = 400
) -> Failure:
    return Failure(status, message, "invalid_request_error", code, param)


def unknown_encoding() -> Failure:
    told = "The body's Content-Encoding is not read here: send it as it is, or gzip."
    return bad_request(told, code="unsupported_encoding", status=415)


def unauthorized(message: str, code: str) -> Failure:
    return Failure(401, message, "authentication_error", code)


def not_found(method: str, path: str, known: Iterable[str] = ()) -> Failure:
    """`known`: the paths there are. Most wrong ones come of a base URL with one `/v1` too few or too many."""
    shown = path if len(path) <= 200 else path[:200] + "…"
    meant = "/v1" + re.sub(r"^(?:/v1)+(?=/)", "", path)
    hint = f": it is {meant}. Look at the base URL" if meant in known else "; /openapi.json lists what there is"
    return Failure(404, f"There is no {method} {shown} here{hint}.", "invalid_request_error", "unknown_url")


def not_ready(reason: str, retry_after_s: float) -> Failure:
    return Failure(503, reason, "fleet_not_ready", "fleet_not_ready", retry_after_s=retry_after_s)


def engine_lost(reason: str, retry_after_s: float) -> Failure:
    """The request was under way when its engine went away: what it produced is gone."""
    return Failure(502, reason, "engine_lost", "engine_lost", retry_after_s=retry_after_s)


def internal() -> Failure:
    return Failure(500, "The gateway failed; its log names the place.", "server_error", "internal_error")


def json_object(raw: bytes | str) -> dict[str, Any] | None:
    """What the engine says, if it is a JSON object; None for anything else, also for one nested without end."""
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def from_engine(status: int, body: bytes) -> Failure:
    """SGLang's error as OpenAI's: `{"object": "error", "message": …}` becomes `{"error": {"message": …}}`."""
    message = code = param = None
    raw = json_object(body)
    if raw is not None:
        inner = raw["error"] if isinstance(raw.get("error"), dict) else raw
        message = inner.get("message") or inner.get("detail")
        param = inner.get("param")
        code = inner.get("code")
    if not isinstance(message, str) or not message.strip():
        message = f"The engine answered {status} without saying why."
    message, named = _readable(message)
    client = status < 500
    if client and _DOES_NOT_FIT.search(message):
        code = TOO_LONG
    return Failure(
        status,
        message[:MAX_UPSTREAM_MESSAGE],
        "invalid_request_error" if client else "server_error",
        code if isinstance(code, str) else ("engine_refused" if client else "engine_error"),
        param if isinstance(param, str) else named,
    )


def _readable(message: str) -> tuple[str, str | None]:
    """SGLang's message for people, and the field it is about.

    A body that its models refuse comes back as Python literals with the input echoed, then file paths of the
    engine. Source: `validation_exception_handler` in http_server.py, sglang 0.5.23.
    """
    text = message.partition(_TRACE)[0].strip()
    if "validation error" not in text[:40]:
        return text, None
    told: dict[str, str] = {}
    for found in _VALIDATION.finditer(text):
        names = [part.strip(" '\"") for part in found[1].split(",")]
        told.setdefault(".".join(name for name in names if name and name != "body"), found[3])
    if not told:
        return "The engine does not accept a field of this request.", None
    first = list(told.items())[:MAX_VALIDATION_ERRORS]
    return "; ".join(f"{where}: {what}" if where else what for where, what in first), first[0][0] or None
