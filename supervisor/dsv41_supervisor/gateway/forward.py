"""Passing one request to the engine and its answer back: whole, or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from . import policy, sse
from .answers import Failure, engine_lost, from_engine, not_ready
from .config import Timings
from .metrics import Metrics
from .policy import Body, CapSource, Effective
from .readiness import DEFAULT_RETRY_AFTER_S
from .running import Cut, Ticket

ENGINE_GONE = (aiohttp.ClientError, HttpProcessingError, OSError)
"""What reading from an engine raises that is dead, was cut off, or does not speak HTTP any more."""

MAX_ERROR_BYTES = 1 << 18
_RETRY_SOON_S = 2.0

LOST = engine_lost(
    "The engine was lost while it answered: its answer ends here. Try again in a moment.",
    DEFAULT_RETRY_AFTER_S,
)
ABSENT = not_ready("The engine does not accept connections just now. Try again in 2 s.", _RETRY_SOON_S)

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
    """One request on its way: what is sent (also encoded), what holds for it, where it goes."""

    body: Body
    encoded: bytes
    effective: Effective
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)

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
            # uvicorn closes idle connections after 5 s; we do earlier, and never send into a closing one.
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

    async def whole(self, job: Job, ticket: Ticket) -> web.Response:
        """The answer in one piece, read to its end first: a lost engine is a 502, not half an answer."""
        upstream: aiohttp.ClientResponse | None = None
        try:
            async with ticket:
                upstream = await self._open(job)
                return await self._relay(job, upstream)
        except (Cut, EngineRefused) as error:
            return error.failure.response(job.answer_headers())
        finally:
            if upstream is not None:
                upstream.close()

    async def stream(self, request: web.Request, job: Job, ticket: Ticket) -> web.StreamResponse:
        """Server-sent events: the engine's bytes, unchanged, as fast as the client takes them."""
        out = Outlet(request, self._metrics)
        opening: asyncio.Task[aiohttp.ClientResponse] | None = None
        try:
            async with ticket:
                # The engine sends its first byte after the prefill, which can take minutes.
                opening = asyncio.create_task(self._open(job))
                while not (await asyncio.wait({opening}, timeout=self._timings.keep_alive_s))[0]:
                    await out.start(job)
                    await out.keep_alive()
                upstream = opening.result()
                if out.response is None and upstream.content_type != "text/event-stream":
                    return await self._relay(job, upstream)
                await out.start(job)
                await self._pump(upstream, out)
        except (Cut, EngineRefused) as error:
            if out.response is None:
                return error.failure.response(job.answer_headers())
            await out.fail(error.failure, self._timings.farewell_s)
        except ClientGone:
            self._metrics.clients_gone += 1
        finally:
            if opening is not None:
                await _close(opening)
        return out.response or web.Response(status=499)  # nobody reads it

    async def _pump(self, upstream: aiohttp.ClientResponse, out: Outlet) -> None:
        """Raises EngineRefused when the stream ends before its `[DONE]`, ClientGone when writing fails."""
        async for chunk in self._chunks(upstream):
            if chunk:
                await out.write(out.events.feed(chunk))
            else:
                await out.keep_alive()
        out.open_event = not out.events.at_boundary
        rest = out.events.flush()
        if not out.events.done:
            raise EngineRefused(LOST)
        await out.write(rest)
        await out.end()

    async def _chunks(self, upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """What arrives, and b"" at each `keep_alive_s` of silence. Raises EngineRefused."""
        while True:
            try:
                async with asyncio.timeout(self._timings.keep_alive_s):
                    chunk = await upstream.content.readany()
            except TimeoutError:
                chunk = b""
                connection = upstream.connection
                # aiohttp 3.14 closes on broken chunked encoding without waking the reader.
                if connection is not None and (not connection.transport or connection.transport.is_closing()):
                    raise EngineRefused(LOST) from None
            except ENGINE_GONE:
                raise EngineRefused(LOST) from None
            else:
                if not chunk:
                    return
            yield chunk

    async def _relay(self, job: Job, upstream: aiohttp.ClientResponse) -> web.Response:
        content = b"".join([chunk async for chunk in self._chunks(upstream)])
        kind = {"Content-Type": upstream.headers.get("Content-Type", "application/json")}
        return web.Response(body=content, headers=job.answer_headers() | kind)

    async def _open(self, job: Job) -> aiohttp.ClientResponse:
        """The engine's 200. Raises EngineRefused for anything else."""
        for attempt in (1, 2):
            try:
                response = await self._session.post(job.url, data=job.encoded, allow_redirects=False)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                # It died since the supervisor last looked, so it never saw this request.
                raise EngineRefused(ABSENT) from None
            except ENGINE_GONE:
                raise EngineRefused(LOST) from None
            if response.status == 200:
                job.body, job.encoded = {}, b""  # a prompt has megabytes, an answer streams for minutes
                return response
            try:
                failure = await self._failure(response)
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
            job.encoded = encode(job.body)
            job.effective = replace(job.effective, max_tokens=room)
        raise EngineRefused(failure)

    async def _failure(self, response: aiohttp.ClientResponse) -> Failure:
        body = b""
        async for chunk in self._chunks(response):
            body += chunk
            if len(body) > MAX_ERROR_BYTES:
                break
        if response.status in (401, 403) or response.status < 400:
            # Not the client's key: ours is the only one it gave, and the engine has none.
            message = f"The engine answered {response.status}, which it never should."
            return Failure(502, message, "server_error", "engine_error")
        failure = from_engine(response.status, body)
        return replace(failure, retry_after_s=_RETRY_SOON_S) if failure.status in (429, 503) else failure


async def _close(opening: asyncio.Task[aiohttp.ClientResponse]) -> None:
    """Close the engine's connection, whether opening or streaming: SGLang then aborts the request."""
    if not opening.done():
        opening.cancel()
    with contextlib.suppress(asyncio.CancelledError, EngineRefused, policy.BadRequest):
        (await opening).close()


class Outlet:
    """The client's side of a stream. Until the first byte `response` is None, and errors have a status."""

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

    async def keep_alive(self) -> None:
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
