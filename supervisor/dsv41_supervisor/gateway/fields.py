"""Reading the fields of a request's body; what is wrong is a 400 that names the field. Pure."""

from __future__ import annotations

from math import isfinite
from typing import Any

Body = dict[str, Any]

_MEDIA_PARTS = ("image_url", "video_url", "audio_url", "file_url")


class BadRequest(ValueError):
    """The request cannot be served as it stands: 400, with the field and what to send instead."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code


def an_object(out: Body, name: str) -> Body:
    value = out.get(name, {})
    if not isinstance(value, dict):
        raise BadRequest(f"{name} is not an object.", name)
    return value


def a_list(out: Body, name: str) -> list[Any]:
    value = out.get(name, [])
    if not isinstance(value, list):
        raise BadRequest(f"{name} is not a list.", name)
    return value


def flag(out: Body, name: str) -> bool:
    value = out.get(name, False)
    if not isinstance(value, bool):
        # The engine would take "true" for true, and stream to a client that we answer in one piece.
        raise BadRequest(f"{name} is neither true nor false.", name)
    return value


def count(value: object, where: str) -> int:
    """A whole number from 1. The engine takes 0 for "no limit", "100" for 100 and true for 1."""
    if isinstance(value, float) and isfinite(value) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadRequest(f"{where} is not a whole number from 1 up.", where)
    return value


def up_to(value: object, most: int, where: str) -> int:
    """A whole number from 0 to `most`. The engine takes "100" for 100."""
    if isinstance(value, float) and isfinite(value) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or not 0 <= value <= most:
        raise BadRequest(f"{where} is not a whole number from 0 to {most}.", where)
    return value


def messages(out: Body) -> list[Body]:
    """The messages, each an object with a role."""
    given = out.get("messages")
    if not isinstance(given, list) or not given:
        raise BadRequest("messages is missing or empty: send at least one message.", "messages", "missing_field")
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        if not isinstance(message, dict):
            raise BadRequest(f"{where} is not an object with role and content.", where)
        if not isinstance(message.get("role"), str):
            raise BadRequest(f"{where}.role is missing or not a string.", f"{where}.role", "missing_field")
    return given


def check_parts(content: object, where: str) -> None:
    """Raises BadRequest for a part of a message that the engine would fetch."""
    if isinstance(content, list):
        for i, part in enumerate(content):
            check_part(part, f"{where}[{i}]")


def check_part(part: object, where: str) -> None:
    """The engine would fetch any URL and open any path, with its own rights: only data inside the request."""
    if not isinstance(part, dict):
        raise BadRequest(f"{where} is not an object with a type.", where)
    for kind in _MEDIA_PARTS:
        media = part.get(kind)
        if media is not None:
            check_url(media.get("url") if isinstance(media, dict) else media, f"{where}.{kind}")


def check_url(url: object, where: str) -> None:
    if not isinstance(url, str) or not url[:5].lower() == "data:":
        raise BadRequest(
            f"{where} is not a data: URL. Nothing is fetched: send the content itself, base64.",
            where,
            "unsupported_url",
        )


def own_tools(out: Body, own: frozenset[str | None], whose: str, instead: str) -> tuple[str, ...]:
    """Takes tools away that the provider's servers run, and names them: the engine would leave them out without a word.

    A request that has no others is refused: it makes no sense without them.
    """
    kept: list[Body] = []
    dropped: list[str] = []
    for i, tool in enumerate(a_list(out, "tools")):
        if not isinstance(tool, dict):
            raise BadRequest(f"tools[{i}] is not an object.", f"tools[{i}]")
        kind = tool.get("type")
        if isinstance(kind, (str, type(None))) and kind in own:
            kept.append(tool)
        else:
            dropped.append("".join(c for c in str(kind)[:40] if c.isascii() and (c.isalnum() or c in "_-.")))
    if dropped and not kept:
        raise BadRequest(
            f"tools has only {', '.join(dropped)}, which {whose} servers run and this fleet does not: send {instead}.",
            "tools",
            "unsupported_tool",
        )
    if dropped:
        out["tools"] = kept
    return tuple(f"tools.{kind}" for kind in dropped)
