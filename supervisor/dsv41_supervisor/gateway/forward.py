"""Passing one request to the engine and its answer back: whole, or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable
from dataclasses import dataclass, replace

import aiohttp
from aiohttp import web

from . import policy, sse
from .answers import Failure, engine_lost, from_engine, not_ready
from .config import Timings
from .metrics import Metrics
from .policy import Body, CapSource, Effective
from .readiness import Readiness
from .running import Cut, Ticket

MAX_ERROR_BYTES = 1 << 18
_RETRY_SOON_S = 2.0
_NO_BUFFERING = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EngineRefused(Exception):
    """The engine answered with an error, or could not be reached; says what to tell the client."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.code)
        self.failure = failure


class ClientGone(Exception):
    """Nobody reads this answer any more."""


@dataclass(slots=True)
class Job:
    """One request on its way: where it goes, what is sent, what holds for it."""

    url: str
    body: Body
    effective: Effective
    headers: dict[str, str]

    def answer_headers(self) -> dict[str, str]:
        return self.headers | self.effective.headers()


def encode(body: Body) -> bytes:
    """Raises BadRequest for what JSON or UTF-8 cannot carry."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        raise policy.BadRequest(
            "the text holds half of a surrogate pair, which is not valid Unicode."
        ) from None
    except ValueError:
        raise policy.BadRequest("a number is too large.") from None


class Forwarder:
    """Talks to SGLang. Nothing of the client's headers goes there; nothing of SGLang's headers comes back."""

    def __init__(self, timings: Timings, metrics: Metrics) -> None:
        self._timings = timings
        self._metrics = metrics
        self._session = aiohttp.ClientSession(
            # uvicorn closes an idle connection after 5 s; we let go of it earlier and never send into a closing one.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=timings.connect_s),
            auto_decompress=False,
            read_bufsize=1 << 14,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "Content-Type": "application/json"},
            skip_auto_headers=("User-Agent",),
        )

    async def close(self) -> None:
        await self._session.close()

    async def whole(self, job: Job, ticket: Ticket, now: Readiness) -> web.Response:
        """The answer in one piece; read to its end first, so that a lost engine is a 502, not half an answer."""
        upstream: aiohttp.ClientResponse | None = None
        try:
            async with ticket:
                upstream = await self._open(job, now)
                return await self._relay(job, upstream, now)
        except (Cut, EngineRefused) as error:
            return error.failure.response(job.answer_headers())
        finally:
            if upstream is not None:
                upstream.close()

    async def stream(
        self, request: web.Request, job: Job, ticket: Ticket, now: Readiness
    ) -> web.StreamResponse:
        """Server-sent events: the engine's bytes, unchanged, as fast as the client takes them."""
        out = Outlet(request, self._metrics)
        opening: asyncio.Task[aiohttp.ClientResponse] | None = None
        try:
            async with ticket:
                # The engine sends its first byte after the prefill, which can take minutes.
                opening = asyncio.create_task(self._open(job, now))
                while not (await asyncio.wait({opening}, timeout=self._timings.keep_alive_s))[0]:
                    await out.keep_alive(job)
                upstream = opening.result()
                if out.response is None and upstream.content_type != "text/event-stream":
                    return await self._relay(job, upstream, now)
                await out.start(job)
                await self._pump(upstream, out, now)
        except (Cut, EngineRefused) as error:
            if out.response is None:
                return error.failure.response(job.answer_headers())
            await out.fail(error.failure, self._timings.farewell_s)
        except ClientGone:
            self._metrics.clients_gone += 1
        finally:
            if opening is not None:
                await _close(opening)
        assert out.response is not None
        return out.response

    async def _pump(self, upstream: aiohttp.ClientResponse, out: Outlet, now: Readiness) -> None:
        """Raises EngineRefused when the stream ends before its `[DONE]`, ClientGone when writing fails."""
        while True:
            try:
                async with asyncio.timeout(self._timings.keep_alive_s):
                    chunk = await upstream.content.readany()
            except TimeoutError:
                await out.keep_alive(None)
                continue
            except (aiohttp.ClientError, OSError):
                raise EngineRefused(_lost(now)) from None
            if not chunk:
                break
            await out.write(out.events.feed(chunk))
        at_boundary = out.events.at_boundary
        rest = out.events.flush()
        if not out.events.done:
            out.open_event = not at_boundary
            raise EngineRefused(_lost(now))
        await out.write(rest)
        await out.end()

    async def _relay(self, job: Job, upstream: aiohttp.ClientResponse, now: Readiness) -> web.Response:
        content = await _reading(upstream.read(), now)
        return web.Response(
            body=content,
            headers=job.answer_headers() | {"Content-Type": upstream.headers.get("Content-Type", "")},
        )

    async def _open(self, job: Job, now: Readiness) -> aiohttp.ClientResponse:
        """The engine's 200. Raises EngineRefused for anything else."""
        for attempt in (1, 2):
            try:
                response = await self._session.post(job.url, data=encode(job.body), allow_redirects=False)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                # It died since the supervisor last looked, so it never saw this request.
                raise EngineRefused(
                    not_ready(
                        "The engine does not accept connections just now. Try again in 2 s.", _RETRY_SOON_S
                    )
                ) from None
            except (aiohttp.ClientError, OSError):
                raise EngineRefused(_lost(now)) from None
            if response.status == 200:
                return response
            try:
                failure = await self._failure(response, now)
            finally:
                response.close()
            room = policy.room_left(failure.message) if failure.status == 400 else None
            if (
                attempt == 2
                or room is None
                or job.effective.cap_source not in (CapSource.FILLED, CapSource.CLAMPED)
            ):
                break
            # The limit was ours, not the client's, and it does not fit behind this prompt: take what is left.
            job.body = policy.with_max_tokens(job.body, room)
            job.effective = replace(job.effective, max_tokens=room)
        raise EngineRefused(failure)

    async def _failure(self, response: aiohttp.ClientResponse, now: Readiness) -> Failure:
        body = b""
        while len(body) < MAX_ERROR_BYTES:
            chunk = await _reading(response.content.readany(), now)
            if not chunk:
                break
            body += chunk
        if response.status in (401, 403) or response.status < 400:
            # Not the client's key: ours is the only one it gave, and the engine has none.
            return Failure(
                502,
                f"The engine answered {response.status}, which it never should.",
                "server_error",
                "engine_error",
            )
        failure = from_engine(response.status, body)
        return replace(failure, retry_after_s=_RETRY_SOON_S) if failure.status in (429, 503) else failure


async def _reading(awaitable: Awaitable[bytes], now: Readiness) -> bytes:
    try:
        return await awaitable
    except (aiohttp.ClientError, OSError):
        raise EngineRefused(_lost(now)) from None


def _lost(now: Readiness) -> Failure:
    message = "The engine was lost while it answered: its answer ends here. Try again in a moment."
    return engine_lost(message, now.retry_after_s)


async def _close(opening: asyncio.Task[aiohttp.ClientResponse]) -> None:
    """Close the engine's connection, whether opening or streaming: SGLang then aborts the request."""
    if not opening.done():
        opening.cancel()
    with contextlib.suppress(asyncio.CancelledError, EngineRefused, policy.BadRequest):
        (await opening).close()


class Outlet:
    """The client's side of a stream. Until the first byte `response` is None and an error can have a status."""

    def __init__(self, request: web.Request, metrics: Metrics) -> None:
        self.response: web.StreamResponse | None = None
        self.events = sse.WholeEvents()
        self.open_event = False
        self._request = request
        self._metrics = metrics

    async def start(self, job: Job) -> None:
        if self.response is not None:
            return
        headers = job.answer_headers() | _NO_BUFFERING | {"Content-Type": "text/event-stream; charset=utf-8"}
        response = web.StreamResponse(headers=headers)
        try:
            await response.prepare(self._request)
        except ConnectionError:
            raise ClientGone from None
        self.response = response

    async def write(self, content: bytes) -> None:
        """Waits while the client is slow; then the engine's connection is not read either."""
        if not content:
            return
        assert self.response is not None
        try:
            await self.response.write(content)
        except ConnectionError:
            raise ClientGone from None

    async def keep_alive(self, job: Job | None) -> None:
        if job is not None:
            await self.start(job)
        if self.events.at_boundary:
            self._metrics.keep_alives += 1
            await self.write(sse.KEEP_ALIVE)

    async def end(self) -> None:
        assert self.response is not None
        try:
            await self.response.write_eof()
        except ConnectionError:
            raise ClientGone from None

    async def fail(self, failure: Failure, within_s: float) -> None:
        """End with an error event, never with silence or `[DONE]`. A client that does not read is dropped."""
        self._metrics.streams_cut += 1
        try:
            async with asyncio.timeout(within_s):
                await self.write(sse.event(failure.payload(), after_boundary=not self.open_event))
                await self.end()
        except (TimeoutError, ClientGone):
            if self._request.transport is not None:
                self._request.transport.abort()
