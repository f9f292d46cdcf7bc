"""The routes: who may call, what is answered here, what goes to the engine. What is not listed is a 404."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from ..journal import log
from . import loops, metrics_waiting, openapi, policy
from .admission import Turn
from .answers import Failure, bad_request, internal, not_found, not_ready, unauthorized, unknown_encoding
from .config import GatewayConfig
from .forward import Forwarder, Job, make_job
from .keys import ANYONE, Caller, KeyFile, presented_key
from .meters import Meters, Use
from .metrics import Metrics
from .outlet import ClientGone, Outlet
from .policy import Body
from .protocols import Protocol
from .readiness import Readiness
from .refuse import Refuse
from .room import Room
from .routes import ROUTES, Route
from .running import Running
from .waiting import Lobby, Place

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# until aiohttp >= 3.14 everywhere: earlier ones know plain strings only (nixpkgs has one of them).
_key: Callable[[str, type], Any] = getattr(web, "RequestKey", lambda name, _: name)
CALLER = _key("caller", Caller)
REQUEST_ID = _key("request_id", str)
STARTED = _key("started", bool)
_OWN_CHECK = frozenset({"/health", "/ready", "/metrics"})
"""Paths that look themselves at who asks."""

_PATHS = frozenset({"/v1/models", *(to.path for to in ROUTES)})

_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})
"""Of bodies. aiohttp passes those on that it does not know."""

MAX_VALUES = 1 << 21
"""Commas, colons and brackets of a body; a prompt of token ids has one a token. Reading 64 MB of empty lists takes half
a minute and 1.8 GB (measured), this many a second."""

quiet = logging.getLogger("dsv41.gateway.http")
"""aiohttp's own log shows raw headers of malformed requests, keys included: it goes nowhere."""
quiet.setLevel(logging.CRITICAL + 1)


class Gateway:
    """One gateway: its routes over what it is given. `readiness` is asked at each request, never stored."""

    def __init__(
        self,
        config: GatewayConfig,
        keys: KeyFile | None,
        forwarder: Forwarder,
        running: Running,
        lobby: Lobby,
        metrics: Metrics,
        readiness: Callable[[], Readiness],
        is_fleet_key: Callable[[str], bool],
    ) -> None:
        self._config = config
        self._keys = keys
        self._forwarder = forwarder
        self._running = running
        self._lobby = lobby
        self._metrics = metrics
        self._meters = Meters()
        self._room = Room(2 * config.max_body_bytes)
        self._readiness = readiness
        self._is_fleet_key = is_fleet_key
        self._started_at = int(time.time())
        self._document = openapi.document()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=self._config.max_body_bytes)
        app.on_response_prepare.append(_sign)
        for to in ROUTES:
            app.router.add_post(to.path, self._generate(to), expect_handler=_later)
        for path, handler in (
            ("/v1/models", self._models), ("/v1/models/{model}", self._model), ("/health", self._health),
            ("/ready", self._ready), ("/metrics", self._metrics_text), ("/openapi.json", self._openapi),
        ):  # fmt: skip
            app.router.add_get(path, handler, allow_head=False)
        return app

    def management_app(self) -> web.Application:
        """For the management address, where that is another than the users'."""
        app = web.Application(middlewares=[self._guard])
        app.on_response_prepare.append(_sign)
        for path, handler in (("/metrics", self._metrics_text), ("/health", self._health), ("/ready", self._ready)):
            app.router.add_get(path, handler, allow_head=False)
        return app

    # --- around every request

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keys first, then the handler; every way out is an answer that the client's protocol has."""
        request[REQUEST_ID] = os.urandom(16).hex()
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "other"
        protocol = Protocol.of_path(request.path)
        try:
            if resource is not None:
                self._check_key(request, required=route not in _OWN_CHECK)
            response = await handler(request)
        except Refuse as refused:
            response = refused.failure.response(protocol=protocol)
        except web.HTTPException as error:
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            response = _as_failure(request, error).response(allow, protocol)
        except asyncio.CancelledError:
            self._metrics.clients_gone += 1  # or the gateway stops; nobody is left to answer
            raise
        except Exception as error:
            # Never the message or the values: they may hold a prompt.
            where = [
                f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
            ]
            log.error(
                "bug in the gateway on %s: %s at %s", route, type(error).__name__, ", ".join(where[-4:])
            )
            response = internal().response(protocol=protocol)
            if request.get(STARTED) and request.transport is not None:
                request.transport.abort()  # half an answer is out already: never leave its reader waiting
        self._metrics.requests[route, response.status] += 1
        return response

    def _check_key(self, request: web.Request, *, required: bool) -> None:
        """Sets the caller. Raises Refuse when a key is needed and this is none."""
        if self._keys is None:
            request[CALLER] = ANYONE
            return
        key = presented_key(request.headers)
        caller = self._keys.who(key) if key is not None else None
        if caller is not None:
            request[CALLER] = caller
        elif required and key is None:
            raise Refuse(
                unauthorized("No API key: send the header `Authorization: Bearer KEY`.", "missing_api_key")
            )
        elif required:
            raise Refuse(unauthorized("This API key is not valid here.", "invalid_api_key"))

    # --- answered here

    async def _models(self, request: web.Request) -> web.Response:
        """Those that this key is for."""
        allowed = request[CALLER].limits.allows(self._config.limits.served_model_name)
        return web.json_response({"object": "list", "data": [self._served_model()] if allowed else []})

    async def _model(self, request: web.Request) -> web.Response:
        if request.match_info["model"] != self._config.limits.served_model_name:
            message = f"There is no such model; this fleet serves {self._config.limits.served_model_name}."
            raise Refuse(Failure(404, message, "invalid_request_error", "model_not_found", "model"))
        self._meters.check_model(request[CALLER], request.match_info["model"])
        return web.json_response(self._served_model())

    def _served_model(self) -> Body:
        limits = self._config.limits
        return {
            "id": limits.served_model_name,
            "object": "model",
            "created": self._started_at,
            "owned_by": "dsv41",
            "max_model_len": limits.context_length,
        }

    async def _health(self, request: web.Request) -> web.Response:
        """200 while some boot of the fleet serves, also while it drains."""
        now = self._readiness()
        return self._status(request, now.ready or (now.boot is not None and now.state == "draining"), now)

    async def _ready(self, request: web.Request) -> web.Response:
        """200 while new requests are taken."""
        now = self._readiness()
        return self._status(request, now.ready, now)

    def _status(self, request: web.Request, good: bool, now: Readiness) -> web.Response:
        """Details are for callers with a key."""
        body: Body = {"status": "ok" if good else "unavailable"}
        if request.get(CALLER) is not None:
            body |= {
                "ready": now.ready, "state": now.state, "reason": now.reason, "detail": now.detail,
                "boot": now.boot, "running_requests": len(self._running.tickets),
            }  # fmt: skip
        headers = {} if good else not_ready("", now.retry_after_s).headers()
        return web.json_response(body, status=200 if good else 503, headers=headers)

    async def _metrics_text(self, request: web.Request) -> web.Response:
        """On the management address only; what each key does is for who has the fleet's key."""
        transport, where = request.transport, self._config.management_address
        if transport is None or where not in (None, transport.get_extra_info("sockname")[0]):
            raise web.HTTPNotFound
        is_operator = self._is_fleet_key(presented_key(request.headers) or "")
        if not is_operator and request.get(CALLER) is None:
            self._check_key(request, required=True)
        now = self._readiness()
        text = self._metrics.text(ready=now.ready, running=len(self._running.tickets))
        text += metrics_waiting.waiting(self._lobby, time.monotonic())
        if now.ready and now.upstream is not None:
            text += await self._forwarder.engine_metrics(now.upstream)
        if is_operator:
            text += metrics_waiting.keys(self._lobby, self._meters)
        return web.Response(text=text, content_type="text/plain")

    async def _openapi(self, _: web.Request) -> web.Response:
        return web.json_response(self._document)

    # --- answered by the engine

    def _generate(self, to: Route) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            caller = request[CALLER]
            model = self._config.limits.served_model_name
            with self._meters.request(caller, model) as use, self._lobby.place(caller.name) as place:
                # Before the body: nobody uploads for a 503.
                self._lobby.check(caller.name if to.generates else None)
                job = await self._job(request, to)
                out = self._forwarder.outlet(request, job) if job.effective.stream else None
                try:
                    turn = await self._turn(place, use, job, out)
                    now = self._require_ready()
                except Refuse as refused:
                    if out is None or out.response is None:
                        raise
                    return await self._forwarder.refuse(out, refused.failure)
                except ClientGone:
                    self._metrics.clients_gone += 1
                    assert out is not None
                    return out.response or web.Response(status=499)  # nobody reads it
                # No await between this look and the ticket: a boot that ends from now on ends this request.
                ticket = self._running.open(now.boot)
                job.upstream = now.upstream or ""
                job.headers = {"x-dsv41-boot": now.boot or ""} | (turn.headers() if turn is not None else {})
                use.seen = ticket.seen
                if out is not None:
                    job.begun = place.begun
                    return await self._forwarder.stream(out, job, ticket)
                place.begins_unseen()
                return await self._forwarder.whole(job, ticket)

        return handle

    async def _turn(self, place: Place, use: Use, job: Job, out: Outlet | None) -> Turn | None:
        """The turn of a request that may go to the engine now. While it waits, its stream shows that it lives."""
        if not job.route.generates:
            return None

        async def alive(turn: Turn) -> None:
            assert out is not None
            await out.start(job.answer_headers() | turn.headers())
            await out.keep_alive()

        n_bytes = len(job.encoded)
        return await place.wait(use.begin(n_bytes), n_bytes, alive if out is not None else None, job.places)

    async def _job(self, request: web.Request, to: Route) -> Job:
        """The request, read and normalised; the job alone holds it, until the engine has it."""
        limits = request[CALLER].limits.narrow(self._config.limits)
        try:
            guard = loops.guard(request.headers.get(loops.HEADER), to.protocol) if to.generates else None
            job = make_job(to, parse(await self._body(request)), limits, request[REQUEST_ID])
            job.guard = guard
            return job
        except policy.BadRequest as bad:
            raise Refuse(bad_request(bad.message, bad.param, bad.code)) from None

    def _require_ready(self) -> Readiness:
        now = self._readiness()
        if not now.ready:
            raise Refuse(not_ready(now.sentence, now.retry_after_s))
        return now

    async def _body(self, request: web.Request) -> bytearray:
        if request.content_type != "application/json":
            shown = request.headers.get("Content-Type", "missing")[:80]
            message = f"Content-Type is {shown}: send the header `Content-Type: application/json`."
            raise Refuse(bad_request(message, code="unsupported_media_type", status=415))
        if request.headers.get("Content-Encoding", "").lower() not in _ENCODINGS:
            raise Refuse(unknown_encoding())
        if (request.content_length or 0) > self._config.max_body_bytes:
            raise Refuse(_too_large(self._config.max_body_bytes))
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        try:
            if request.content.is_eof():  # a small body comes with its head, and then nothing is waited for
                return await self._read(request)
            async with asyncio.timeout(self._config.timings.body_s):
                return await self._read(request)
        except TimeoutError:
            message = f"The body did not arrive within {self._config.timings.body_s:g} s."
            raise Refuse(bad_request(message, code="request_timeout", status=408)) from None
        except web.RequestPayloadError:
            raise Refuse(
                bad_request("The body's transfer or content encoding is broken.", code="bad_encoding")
            ) from None

    async def _read(self, request: web.Request) -> bytearray:
        """Not `request.read()`, which keeps the body for as long as its answer streams."""
        body = bytearray()
        with self._room.share() as share:
            while chunk := await request.content.readany():
                share.grow(len(chunk))
                body += chunk
                if len(body) > self._config.max_body_bytes:
                    if "Content-Encoding" in request.headers:
                        # Or the rest would be unpacked too, to be thrown away.
                        request.content.set_exception(web.RequestPayloadError("too large"))
                    raise Refuse(_too_large(self._config.max_body_bytes))
        return body


def _no_constant(name: str) -> None:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
"""Made once: `json.loads` makes one for each body that it may not read in the usual way."""


def parse(raw: bytes | bytearray) -> Body:
    """A JSON object out of a body. Raises BadRequest that says where it is wrong."""
    if not raw:
        raise policy.BadRequest("The body is empty: send a JSON object.", code="invalid_json")
    if len(raw) > MAX_VALUES and sum(raw.count(mark) for mark in b",:[{") > MAX_VALUES:
        message = f"The body holds more than {MAX_VALUES} values: nothing that fits into the context has as many."
        raise policy.BadRequest(message, code="too_many_values")
    try:
        body = _DECODER.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise policy.BadRequest(f"The body is not UTF-8 (byte {error.start}).", code="invalid_json") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise policy.BadRequest(
            f"The body is not JSON: {error.msg} at {where}.", code="invalid_json"
        ) from None
    except (RecursionError, ValueError):
        raise policy.BadRequest("The body is not JSON that can be read.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise policy.BadRequest("The body is not a JSON object.", code="invalid_json")
    return body


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    """On every answer, streams included."""
    request[STARTED] = True
    response.headers["x-request-id"] = request.get(REQUEST_ID, "")
    if Protocol.of_path(request.path) is Protocol.ANTHROPIC:
        response.headers["request-id"] = request.get(REQUEST_ID, "")  # where their SDKs look
    response.headers["Server"] = "dsv41"


async def _later(_: web.Request) -> None:
    """`Expect: 100-continue` is answered once the key is good and the size is acceptable, not before."""


def _too_large(limit: int) -> Failure:
    return bad_request(
        f"The body is larger than {limit} bytes, the limit here.", code="body_too_large", status=413
    )


def _as_failure(request: web.Request, error: web.HTTPException) -> Failure:
    if error.status == 404:
        return not_found(request.method, request.path, _PATHS)
    if error.status == 405:
        allowed = error.headers.get("Allow", "")
        return bad_request(f"{request.path} takes {allowed}.", code="method_not_allowed", status=405)
    if error.status == 413:
        return _too_large(request.client_max_size)
    return bad_request(error.reason or "The request is not understood.", status=error.status)
