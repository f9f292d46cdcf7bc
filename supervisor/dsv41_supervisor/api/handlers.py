"""Requests in, the agent's and the controller's answers out. What a request may be is in `routes`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from ..errors import Dsv41Error, Stage
from ..fleet.controller import FleetController
from ..fleet.desk import Desk
from ..fleet.lease import StaleBoot, Stamp
from ..incident import bundle
from ..incident.evidence import collect
from ..journal import log
from ..node import NodeAgent
from ..rank.plan import Boot
from ..settings import Settings
from ..units import PACK_UNIT, rank_unit
from .asked import body_of, query_of, still_there
from .document import openapi_document
from .gate import Gate, route_of
from .refused import error
from .routes import (
    MAX_LOG_LINES,
    MAX_WAIT_S,
    Admit,
    Decided,
    Facts,
    Listen,
    LogLines,
    Order,
    Part,
    Poll,
    Prepare,
    Program,
    Report,
    Send,
    Start,
    Stop,
    Up,
    Watch,
)

if TYPE_CHECKING:
    from ..doctor.service import DoctorService

STATUS_AGE_S = 0.5
"""Readers of the status within this time share one look, unless something changed in between."""
_PAGE = Path(__file__).parent / "page"
_PAGE_FILES = {"/": "index.html", "/page.js": "page.js", "/page.css": "page.css"}
_PAGE_HEADERS = {
    # Own files only, no inline script or style, nowhere to send anything, in nobody's frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Given = TypeVar("Given", bound=Order)


class Api(Gate):
    """Answers every route of the table, and nothing else."""

    def __init__(
        self, settings: Settings, agent: NodeAgent, controller: FleetController | None, key: str,
        desk: Desk | None = None,
    ) -> None:  # fmt: skip
        super().__init__(settings, agent.node, key)
        self._desk = desk
        self._agent = agent
        self._controller = controller
        self._shared_status: tuple[int, float, asyncio.Task[tuple[dict[str, Any], bytes]]] | None = None

    def application(self) -> web.Application:
        app = super().application()
        app.on_cleanup.append(self._close_doctor)
        return app

    @cached_property
    def _doctor(self) -> DoctorService:
        """Made when it is first asked for: it is 2 MiB of models that a fleet which serves does not need."""
        from ..doctor.service import DoctorService

        return DoctorService(self._agent)

    async def _close_doctor(self, app: web.Application) -> None:
        if "_doctor" in self.__dict__:
            await self._doctor.on_cleanup(app)

    # -- about this supervisor -----------------------------------------------------------------------------------

    async def page(self, request: web.Request) -> web.StreamResponse:
        route = route_of(request)
        assert route is not None
        text = await asyncio.to_thread((_PAGE / _PAGE_FILES[route.path]).read_text)
        return web.Response(text=text, content_type=route.media, charset="utf-8", headers=_PAGE_HEADERS)

    async def liveness(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"alive": True})

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
            return web.json_response(body=(await self._status_of_fleet(self._controller))[1])
        head = self._settings.fleet.head
        return web.json_response({"head": head, "nodes": {self._agent.node: self._agent.status()}})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        from ..metrics import render

        fleet = (await self._status_of_fleet(self._controller))[0] if self._controller is not None else None
        text = render(self._agent.status(), await self._agent.measure(), fleet)
        # Prometheus names the version of its format in the media type.
        return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def openapi(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(openapi_document())

    async def _status_of_fleet(self, controller: FleetController) -> tuple[dict[str, Any], bytes]:
        """One look for all who ask at the same time, as JSON too: each costs a request to every node."""

        async def look() -> tuple[dict[str, Any], bytes]:
            status = await controller.status()
            return status, json.dumps(status).encode()

        now = asyncio.get_running_loop().time()
        shared = self._shared_status
        if shared is None or shared[0] != controller.changes.version or now - shared[1] > STATUS_AGE_S:
            task = asyncio.ensure_future(look())
            task.add_done_callback(lambda t: t.cancelled() or t.exception())
            shared = self._shared_status = controller.changes.version, now, task
        return await asyncio.shield(shared[2])

    # -- the fleet, asked of the head ----------------------------------------------------------------------------

    async def fleet_up(self, request: web.Request) -> web.StreamResponse:
        return await self._order(request, Up, lambda head, asked: head.up(asked.by, asked.override))

    async def fleet_down(self, request: web.Request) -> web.StreamResponse:
        return await self._order(request, Order, lambda head, asked: head.down(asked.by))

    async def fleet_drain(self, request: web.Request) -> web.StreamResponse:
        return await self._order(request, Order, lambda head, asked: head.drain(asked.by))

    async def fleet_pause(self, request: web.Request) -> web.StreamResponse:
        return await self._order(request, Order, lambda head, asked: head.pause(asked.by))

    async def fleet_resume(self, request: web.Request) -> web.StreamResponse:
        return await self._order(request, Order, lambda head, asked: head.resume(asked.by))

    async def _order(
        self, request: web.Request, model: type[Given], give: Callable[[FleetController, Given], str]
    ) -> web.StreamResponse:
        """Give the fleet an order, unless whoever asked has gone: it was told by then that nobody answered."""
        head, asked = self._head(), await body_of(request, model)
        if not still_there(request):
            log.warning("%s of %s was not carried out: it came late, and who asked has gone", request.path, asked.by)
            return error(408, "who asked has gone", "Ask again, and wait for the answer.")
        return web.json_response({"said": give(head, asked), "unwritten": head.unwritten}, status=202)

    async def fleet_decisions(self, request: web.Request) -> web.StreamResponse:
        lines = query_of(request, Decided).lines
        return web.json_response({"decisions": await asyncio.to_thread(self._head().decisions.last, lines)})

    async def fleet_readiness(self, request: web.Request) -> web.StreamResponse:
        head, asked = self._head(), query_of(request, Poll)
        await head.changes.newer_than(asked.since, min(asked.wait_s, MAX_WAIT_S))
        return web.json_response(head.readiness())

    # -- this node, ordered by the head --------------------------------------------------------------------------

    async def node_watch(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, Watch)
        if asked.boot and asked.stamp:
            try:
                self._agent.renew(asked.boot, Stamp.parse(asked.stamp))
            except StaleBoot as stale:
                log.debug("not renewed: %s", stale)
        await self._agent.changes.newer_than(asked.since, min(asked.wait_s, MAX_WAIT_S))
        return web.json_response(self._agent.status())

    async def node_measure(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(await self._agent.measure())

    async def node_evidence(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(await collect(self._agent))

    async def incidents_make(self, request: web.Request) -> web.StreamResponse:
        asked, desk = await body_of(request, Order), self._incidents()
        try:
            name = await desk.make("asked-for", f"asked for by {asked.by}")
        except OSError as problem:
            raise Dsv41Error(
                f"{problem}.", stage=Stage.RANK, node=self._agent.node, transient=True,
                hint=f"Free some space in {desk.directory}, then try again.",
            ) from None  # fmt: skip
        return web.json_response({"name": name, "path": str(desk.directory / f"{name}.tar.gz")}, status=201)

    async def incidents(self, request: web.Request) -> web.StreamResponse:
        desk = self._incidents()
        kept = await asyncio.to_thread(bundle.entries, desk.directory)
        said = [{"name": e.name, "bytes": e.bytes, "at": e.at} for e in kept]
        return web.json_response({"directory": str(desk.directory), "incidents": said})

    async def incident(self, request: web.Request) -> web.StreamResponse:
        asked, name, desk = query_of(request, Part), request.match_info["name"], self._incidents()
        try:
            if asked.part is None:
                parts = await asyncio.to_thread(bundle.listing, desk.directory, name)
                path = str(desk.directory / f"{name}.tar.gz")
                return web.json_response({"name": name, "path": path, "parts": parts})
            text = await asyncio.to_thread(bundle.read, desk.directory, name, asked.part)
        except (FileNotFoundError, KeyError, ValueError):
            known = name in {entry.name for entry in await asyncio.to_thread(bundle.entries, desk.directory)}
            what, hint = f"there is no bundle {name}", "Run dsv41 incident list: it names those that are kept."
            if known and asked.part is not None:
                what += f" with a part {asked.part}"
                hint = f"Run dsv41 incident show {name}: it names its parts."
            return error(404, what, hint)
        return web.json_response({"name": name, "part": asked.part, "text": text})

    async def node_logs(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, LogLines)
        unit = rank_unit(self._agent.rank_number) if asked.unit == "rank" else PACK_UNIT
        return web.json_response({"lines": await self._agent.tail(unit, min(asked.lines, MAX_LOG_LINES))})

    async def node_prepare(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request, Prepare)
        if body.settings_hash != self._settings.hash:
            raise Dsv41Error(
                f"{self._agent.node} runs settings {self._settings.hash[:12]}, the head {body.settings_hash[:12]}.",
                stage=Stage.CONFIG, node=self._agent.node,
                hint="Switch every node to the same fleet file, then restart dsv41-supervisor there.",
            )  # fmt: skip
        self._agent.prepare(Boot.from_json(body.boot), Stamp.parse(body.stamp), body.override)
        return web.json_response({}, status=202)

    async def node_fabric(self, request: web.Request) -> web.StreamResponse:
        facts = await self._agent.fabric.read()
        return web.json_response({"facts": facts.model_dump(mode="json")})

    async def node_start(self, request: web.Request) -> web.StreamResponse:
        await self._agent.start_rank((await body_of(request, Start)).boot)
        return web.json_response({}, status=202)

    async def node_stop(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request, Stop)
        done = await self._agent.stop_rank(body.why, body.grace_s, body.keep_waiting, body.generation)
        return web.json_response(done)

    async def node_drain(self, request: web.Request) -> web.StreamResponse:
        self._agent.drain()
        return web.json_response({}, status=202)

    # -- the rank's own process ----------------------------------------------------------------------------------

    async def rank_admit(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request, Admit)
        rank = int(request.match_info["rank"])
        await self._agent.knocked(rank)
        said = "waiting for the head's order"
        if self._controller is not None:
            if not self._agent.started_by_order:
                # `systemctl start dsv41-rank@0` on the head starts the fleet.
                self._controller.up("systemctl start dsv41-rank@0")
            said = f"waiting to be admitted; the fleet is {self._controller.state}"
        plan = await self._agent.admit(min(body.wait_s, MAX_WAIT_S))
        return web.json_response({"plan": plan.to_json() if plan is not None else None, "status": said})

    async def rank_report(self, request: web.Request) -> web.StreamResponse:
        body = (await body_of(request, Report)).model_dump(exclude_unset=True)
        answer = self._agent.report(int(request.match_info["rank"]), body)
        if body.get("stopping") and answer["go_on"]:
            await self._agent.told_to_stop()
        return web.json_response(answer)

    # -- dsv41 doctor --------------------------------------------------------------------------------------------

    async def doctor_clock(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"clock_s": time.time()})

    async def doctor_facts(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(await self._doctor.facts(query_of(request, Facts).bound_s))

    async def doctor_listen(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request, Listen)
        return web.json_response(await self._doctor.deep.listen(body.test, body.rail, body.seconds))

    async def doctor_send(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request, Send)
        done = await self._doctor.deep.send(body.test, body.rail, body.target, body.port, body.token, body.seconds)
        return web.json_response(done.model_dump(mode="json"))

    async def doctor_run(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request, Program)

        def gone() -> bool:
            return request.transport is None or request.transport.is_closing()

        done = await self._doctor.deep.run_program(body.test, body.port, body.seconds, gone)
        return web.json_response(done.model_dump(mode="json"))

    def _incidents(self) -> Desk:
        if self._desk is None:
            raise ValueError("this supervisor keeps no incidents")
        return self._desk

    def _head(self) -> FleetController:
        if self._controller is None:
            head = self._settings.fleet.head
            raise Dsv41Error(
                f"{self._agent.node} is not the head.", stage=Stage.RANK, node=self._agent.node,
                hint=f"Ask the head, {head}: dsv41 does so by itself when --node is left out.",
            )  # fmt: skip
        return self._controller
