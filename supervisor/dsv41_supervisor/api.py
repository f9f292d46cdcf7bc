"""The supervisor's HTTP API, on the management address. Every route needs the fleet's key and name.

`ROUTES` is the whole surface: the OpenAPI document is made from it, and nothing else is answered.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from . import __version__
from .errors import Dsv41Error, Refusal, Stage
from .fleet.controller import FleetController
from .fleet.lease import StaleBoot
from .fleet.peers import FLEET_HEADER
from .journal import log
from .node import PACK_UNIT, NodeAgent, rank_unit
from .rank.plan import Boot
from .settings import Settings

MAX_BODY_BYTES = 256 << 10
MAX_WAIT_S = 30.0
MAX_LOG_LINES = 2000


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the API."""

    method: str
    path: str
    summary: str
    handler: str
    head_only: bool = False


ROUTES: tuple[Route, ...] = (
    Route("GET", "/liveness", "200 while this supervisor's loop runs.", "liveness"),
    Route("GET", "/readiness", "200 when the fleet serves; else 503 with the reason.", "readiness"),
    Route("GET", "/status", "The whole fleet (head) or this node.", "status"),
    Route("GET", "/metrics", "Prometheus text.", "metrics"),
    Route("GET", "/openapi.json", "This document.", "openapi"),
    Route("POST", "/fleet/up", "Bring the fleet up; changes nothing when it serves.", "fleet_up", True),
    Route("POST", "/fleet/down", "Stop every rank.", "fleet_down", True),
    Route("POST", "/fleet/drain", "Finish running requests, then stop every rank.", "fleet_drain", True),
    Route("GET", "/fleet/readiness", "Long poll: may users be served, and by whom.", "fleet_readiness", True),
    Route("GET", "/node/watch", "Long poll of this node's status; renews the lease of the boot named.", "node_watch"),
    Route("GET", "/node/measure", "Memory and counters of this node's rank.", "node_measure"),
    Route("GET", "/node/logs", "Last lines of a unit of this node.", "node_logs"),
    Route("POST", "/node/prepare", "Take the lease of a new boot and run stages 2-4.", "node_prepare"),
    Route("POST", "/node/start", "Start this node's rank.", "node_start"),
    Route("POST", "/node/stop", "Stop this node's rank; answers what is left.", "node_stop"),
    Route("POST", "/node/drain", "Take no new requests.", "node_drain"),
    Route("POST", "/rank/{rank}/admit", "A rank's process asks to start.", "rank_admit"),
    Route("POST", "/rank/{rank}/report", "A rank's process reports; answers whether it may go on.", "rank_report"),
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """Requests in, the agent's and the controller's answers out."""

    def __init__(self, settings: Settings, agent: NodeAgent, controller: FleetController | None, key: str) -> None:
        self._settings = settings
        self._agent = agent
        self._controller = controller
        self._key = key.encode()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        for route in ROUTES:
            app.router.add_route(route.method, route.path, getattr(self, route.handler))
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        if not hmac.compare_digest(given, self._key):
            return _error(401, "wrong or missing fleet key")
        fleet = request.headers.get(FLEET_HEADER)
        if fleet != self._settings.fleet.name:
            return _error(409, f"this is fleet {self._settings.fleet.name}, the request is for {fleet}")
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _error(error.status, error.reason)
        except Dsv41Error as error:
            return _error(409, str(error), error.refusals)
        except StaleBoot as error:
            refusal = Refusal(Stage.RANK, f"{error}.", "Run dsv41 down, then dsv41 up.", node=self._agent.node)
            return _error(409, str(refusal), (refusal,))
        except (KeyError, TypeError, ValueError) as error:
            return _error(400, f"malformed request: {type(error).__name__}: {error}")
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return _error(500, "a bug; see the supervisor's log")

    # -- about this supervisor -----------------------------------------------------------------------------------

    async def liveness(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"alive": True, "node": self._agent.node, "version": __version__})

    async def readiness(self, request: web.Request) -> web.StreamResponse:
        if self._controller is not None:
            said = self._controller.readiness()
            ready, reason = said["ready"], said["reason"]
        else:
            rank = self._agent.status()["rank"]
            ready, reason = rank["state"] == "ready", rank["sentence"]
        return web.json_response({"ready": ready, "reason": None if ready else reason}, status=200 if ready else 503)

    async def status(self, request: web.Request) -> web.StreamResponse:
        if self._controller is not None:
            return web.json_response(await self._controller.status())
        head = self._settings.fleet.head
        return web.json_response({"head": head, "nodes": {self._agent.node: self._agent.status()}})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        from .metrics import render

        fleet = await self._controller.status() if self._controller is not None else None
        text = render(self._agent.status(), await self._agent.measure(), fleet)
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def openapi(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(openapi_document())

    # -- the fleet, asked of the head ----------------------------------------------------------------------------

    async def fleet_up(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        return web.json_response({"said": self._head().up(str(body.get("by", "the API")))}, status=202)

    async def fleet_down(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        return web.json_response({"said": self._head().down(str(body.get("by", "the API")))}, status=202)

    async def fleet_drain(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        return web.json_response({"said": self._head().drain(str(body.get("by", "the API")))}, status=202)

    async def fleet_readiness(self, request: web.Request) -> web.StreamResponse:
        head = self._head()
        await head.changes.newer_than(_int(request, "since", 0), _wait_s(request))
        return web.json_response(head.readiness())

    # -- this node, ordered by the head --------------------------------------------------------------------------

    async def node_watch(self, request: web.Request) -> web.StreamResponse:
        boot = request.query.get("boot")
        if boot:
            try:
                self._agent.renew(boot)
            except StaleBoot as error:
                log.debug("not renewed: %s", error)
        await self._agent.changes.newer_than(_int(request, "since", 0), _wait_s(request))
        return web.json_response(self._agent.status())

    async def node_measure(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(await self._agent.measure())

    async def node_logs(self, request: web.Request) -> web.StreamResponse:
        units = {"rank": rank_unit(self._agent.rank_number), "pack": PACK_UNIT}
        name = request.query.get("unit", "rank")
        if name not in units:
            raise ValueError(f"unit is one of {', '.join(units)}, not {name!r}")
        n_lines = min(_int(request, "lines", 100), MAX_LOG_LINES)
        return web.json_response({"lines": await self._agent.tail(units[name], n_lines)})

    async def node_prepare(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        if body["settings_hash"] != self._settings.hash:
            raise Dsv41Error(
                f"{self._agent.node} runs settings {self._settings.hash[:12]}, the head {body['settings_hash'][:12]}.",
                stage=Stage.CONFIG, node=self._agent.node,
                hint="Switch every node to the same fleet file, then restart dsv41-supervisor there.",
            )  # fmt: skip
        self._agent.prepare(Boot.from_json(body["boot"]))
        return web.json_response({}, status=202)

    async def node_start(self, request: web.Request) -> web.StreamResponse:
        await self._agent.start_rank(str((await _body(request))["boot"]))
        return web.json_response({}, status=202)

    async def node_stop(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        grace_s = min(max(float(body["grace_s"]), 0.0), 3600.0)
        return web.json_response(await self._agent.stop_rank(str(body["why"]), grace_s))

    async def node_drain(self, request: web.Request) -> web.StreamResponse:
        self._agent.drain()
        return web.json_response({}, status=202)

    # -- the rank's own process ----------------------------------------------------------------------------------

    async def rank_admit(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        rank = int(request.match_info["rank"])
        if rank == 0 and self._controller is not None:
            # `systemctl start dsv41-rank@0` on the head starts the fleet.
            self._controller.up("dsv41-rank@0")
        plan = await self._agent.admit(rank, min(float(body.get("wait_s", 0)), MAX_WAIT_S))
        return web.json_response({"plan": plan.to_json() if plan is not None else None})

    async def rank_report(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self._agent.report(int(request.match_info["rank"]), await _body(request)))

    def _head(self) -> FleetController:
        if self._controller is None:
            head = self._settings.fleet.head
            raise Dsv41Error(
                f"{self._agent.node} is not the head.", stage=Stage.RANK, node=self._agent.node,
                hint=f"Ask the head, {head}: dsv41 does so by itself when --node is left out.",
            )  # fmt: skip
        return self._controller


def openapi_document() -> dict[str, Any]:
    """The API as an OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        operation: dict[str, Any] = {
            "summary": route.summary,
            "operationId": route.handler,
            "responses": {
                "200": {"description": "Done."},
                "401": {"description": "Wrong or missing fleet key."},
                "409": {"description": "Refused; every reason is in error.refusals."},
            },
        }
        if "{rank}" in route.path:
            operation["parameters"] = [
                {"name": "rank", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}}
            ]
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "dsv41 supervisor", "version": __version__},
        "components": {"securitySchemes": {"fleetKey": {"type": "http", "scheme": "bearer"}}},
        "security": [{"fleetKey": []}],
        "paths": paths,
    }


def _error(status: int, message: str, refusals: tuple[Refusal, ...] = ()) -> web.Response:
    body = {"error": {"message": message, "refusals": [r.to_json() for r in refusals]}}
    return web.json_response(body, status=status)


async def _body(request: web.Request) -> dict[str, Any]:
    raw = await request.read()
    try:
        body = json.loads(raw or b"{}")
    except ValueError:
        raise ValueError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    return body


def _int(request: web.Request, name: str, default: int) -> int:
    return int(request.query.get(name, default))


def _wait_s(request: web.Request) -> float:
    return min(max(float(request.query.get("wait_s", 0)), 0.0), MAX_WAIT_S)
