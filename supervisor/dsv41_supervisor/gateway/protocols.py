"""The protocols that clients speak, where they differ: what an error looks like, and what says that a stream lives."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Protocol(StrEnum):
    """Chat, text completions and everything that is not a stream speak the first one."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"

    @classmethod
    def of_path(cls, path: str) -> Protocol:
        """What a client expects that asks for this path, also where there is nothing."""
        if path.startswith("/v1/messages"):
            return cls.ANTHROPIC
        return cls.RESPONSES if path.startswith("/v1/responses") else cls.OPENAI

    @property
    def keep_alive(self) -> bytes:
        """An event that every client skips: a comment, or the ping that Anthropic's protocol has for this."""
        return b'event: ping\ndata: {"type": "ping"}\n\n' if self is Protocol.ANTHROPIC else b": keep-alive\n\n"

    @property
    def preamble(self) -> tuple[bytes, ...]:
        """Events that SGLang sends before it has looked whether the request can be served at all."""
        return _PREAMBLES.get(self, ())

    @property
    def last_events(self) -> tuple[bytes, ...]:
        """How the last event of a whole answer begins. Without one of these, the engine was lost."""
        return _LAST[self]


_PREAMBLES = {
    Protocol.RESPONSES: (b"event: response.created\n", b"event: response.in_progress\n"),
    Protocol.ANTHROPIC: (b"event: message_start\n", b"event: ping\n"),
}
_LAST = {
    Protocol.OPENAI: (b"data: [DONE]",),
    Protocol.RESPONSES: tuple(
        f"event: response.{end}\n".encode() for end in ("completed", "incomplete", "failed", "cancelled")
    ),
    Protocol.ANTHROPIC: (b"event: message_stop\n",),
}

_ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "invalid_request_error", 413: "request_too_large",
    415: "invalid_request_error", 422: "invalid_request_error", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
"""Source: Anthropic's list of error types; its SDKs make their exceptions from the status."""


def error_body(
    protocol: Protocol, *, status: int, message: str, kind: str, code: str, param: str | None
) -> dict[str, Any]:
    if protocol is Protocol.ANTHROPIC:
        # `code` is ours: their clients read past it, and people do not have to guess.
        error = {"type": _ANTHROPIC_TYPES.get(status, "api_error"), "message": message, "code": code}
        return {"type": "error", "error": error}
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def anthropic_status(kind: str) -> int:
    """The status that an error event would have had as an answer."""
    known = {name: status for status, name in reversed(_ANTHROPIC_TYPES.items())}
    return 400 if kind == "invalid_request_error" else known.get(kind, 500)
