"""What a request asks, checked against the route's model, and whether somebody still waits for the answer."""

from __future__ import annotations

import asyncio
import select
from typing import TypeVar

from aiohttp import http_exceptions, web
from pydantic import ValidationError

from .routes import Asked

BODY_S = 10.0
"""For a request's body to come whole."""
A = TypeVar("A", bound=Asked)


class Malformed(ValueError):
    """A query or body that is not as the route says; the text names the fields."""


def still_there(request: web.Request) -> bool:
    """Whether the client has kept its connection. One that gave up while this process stood still has closed it, and
    the kernel knows that before the event loop has read it."""
    transport = request.transport
    sock = transport.get_extra_info("socket") if transport is not None else None
    if transport is None or transport.is_closing() or sock is None:
        return False
    look = select.poll()
    look.register(sock.fileno(), select.POLLRDHUP)
    return not look.poll(0)


async def body_of(request: web.Request, model: type[A]) -> A:
    """The body as the route says. Raises Malformed, or HTTPRequestTimeout when it does not come whole."""
    try:
        async with asyncio.timeout(BODY_S):
            raw = await request.read()
    except (http_exceptions.HttpProcessingError, web.RequestPayloadError) as error:
        raise Malformed(f"the body cannot be read ({type(error).__name__})") from None
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason=f"the body did not come within {BODY_S:g} s") from None
    try:
        # pydantic's own reader: it refuses NaN in numbers and stops at deep nesting, where json's overflows the stack.
        return model.model_validate_json(raw or b"{}")
    except ValidationError as error:
        raise Malformed(_fields(error)) from None


def query_of(request: web.Request, model: type[A]) -> A:
    """The query as the route says. Raises Malformed."""
    try:
        return model.model_validate(dict(request.query))
    except ValidationError as error:
        raise Malformed(_fields(error)) from None


def _fields(error: ValidationError) -> str:
    said = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False)[:5]:
        where = ".".join(map(str, problem["loc"]))
        if not where:
            where = "the body is not JSON" if problem["type"] == "json_invalid" else "the body is not a JSON object"
        said.append(f"{where}: {problem['msg']}")
    return "; ".join(said)
