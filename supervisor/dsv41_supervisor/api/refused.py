"""What an error of the API looks like: the sentence, and every reason with its stage and the next step."""

from __future__ import annotations

from aiohttp import web

from ..errors import Refusal, Stage

_DOCUMENT = "GET /openapi.json describes every path, query and body."
_HINTS = {
    404: _DOCUMENT,
    405: _DOCUMENT,
    408: "Send the whole body at once.",
    413: f"Send less. {_DOCUMENT}",
    500: "Report it with the supervisor's log of that node.",
}


def hint_for(status: int) -> str:
    """The next step where the status is all that is known."""
    return _HINTS.get(status, f"Correct what is named. {_DOCUMENT}")


def error(
    status: int, message: str, hint: str = "", *, refusals: tuple[Refusal, ...] = (), stage: Stage = Stage.RANK,
    headers: dict[str, str] | None = None,
) -> web.Response:  # fmt: skip
    """The answer to a request that failed. Without `refusals`, `message` and `hint` are the one there is."""
    refusals = refusals or (Refusal(stage, f"{message}.", hint),)
    body = {"error": {"message": message, "refusals": [r.to_json() for r in refusals]}}
    return web.json_response(body, status=status, headers=headers)
