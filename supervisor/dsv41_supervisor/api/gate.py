"""Who is let in, and what becomes of an answer that fails. The answers themselves are in `handlers`."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web

from ..errors import Dsv41Error, Refusal, Stage
from ..fleet.lease import StaleBoot
from ..fleet.peers import FLEET_HEADER
from ..journal import log
from ..settings import Settings
from .asked import Malformed
from .door import Door
from .refused import error, hint_for
from .routes import MAX_BODY_BYTES, ROUTES, Route, Who

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "dsv41"}
_BY_PATH = {(route.method, route.path): route for route in ROUTES}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gate:
    """Routes requests by the table to the methods that it names, once they are let in."""

    def __init__(self, settings: Settings, node: str, key: str) -> None:
        self._settings = settings
        self._node = node
        self._key = key.encode()
        self.door = Door()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        for route in ROUTES:
            app.router.add_route(route.method, route.path, getattr(self, route.handler))
        app.on_response_prepare.append(_always)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        with self.door.busy(request):
            refused = self._not_let_in(request)
            if refused is not None:
                return refused
            return await self._answered(request, handler)

    def _not_let_in(self, request: web.Request) -> web.Response | None:
        """Why this request is not answered. An unknown path needs the key as well: a stranger learns nothing."""
        route = route_of(request)
        if route is not None and route.who is Who.ANYONE:
            return None
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # Compared as bytes and in constant time; surrogates are what aiohttp makes of bytes that are not UTF-8.
        right = hmac.compare_digest(given.strip().encode(errors="surrogateescape"), self._key)
        if scheme.lower() != "bearer" or not right:
            return error(
                401, "wrong or missing fleet key", "Send the key of fleet.key_file as a bearer token.",
                stage=Stage.CONFIG, headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        fleet = request.headers.get(FLEET_HEADER)
        optional = route is not None and route.who is Who.KEY
        if fleet != self._settings.fleet.name and not (fleet is None and optional):
            return error(
                409, f"this is fleet {self._settings.fleet.name}, the request is for {fleet}",
                f"Ask a supervisor of that fleet, or say {FLEET_HEADER}: {self._settings.fleet.name}.",
                stage=Stage.CONFIG,
            )  # fmt: skip
        return None

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as problem:
            allow = {"Allow": problem.headers["Allow"]} if "Allow" in problem.headers else {}
            return error(problem.status, problem.reason, hint_for(problem.status), headers=allow)
        except Dsv41Error as problem:
            return error(409, str(problem), refusals=problem.refusals)
        except StaleBoot as problem:
            refusal = Refusal(Stage.RANK, f"{problem}.", "Run dsv41 down, then dsv41 up.", node=self._node)
            return error(409, str(refusal), refusals=(refusal,))
        except Malformed as problem:
            return error(400, f"malformed request: {problem}", hint_for(400))
        except (KeyError, TypeError, ValueError) as problem:
            return error(400, f"malformed request: {type(problem).__name__}: {problem}", hint_for(400))
        except ConnectionError:
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return error(500, "a bug; see the supervisor's log", hint_for(500))


async def _always(request: web.BaseRequest, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def route_of(request: web.Request) -> Route | None:
    """The table's entry for a request, None for a path or method that is not in it."""
    resource = request.match_info.route.resource
    return _BY_PATH.get((request.method, resource.canonical)) if resource is not None else None
