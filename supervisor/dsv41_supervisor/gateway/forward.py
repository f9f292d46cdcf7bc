"""Passing one request to the engine and its answer back: whole, or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from aiohttp import web

from . import markup, metrics_engine, policy
from .abort import Aborts
from .answers import TOO_LONG, Failure, from_engine, json_object
from .config import Timings
from .engine import RETRY_SOON_S, Engine, EngineAbsent
from .incoming import LOST, EngineRefused, HandOn, Incoming
from .loops import HEADER, Guard, Loop, Mode
from .metrics import Metrics
from .observe import Observer, Seen
from .outlet import ClientGone, Outlet
from .policy import Body, CapSource, Effective
from .protocols import Protocol, anthropic_status
from .routes import Route, batch
from .running import Cut, Ticket
from .sse import WholeEvents

MAX_ERROR_BYTES = 1 << 18
MAX_ANSWER_BYTES = 64 << 20
"""Of an answer in one piece. Guess; 32768 tokens with their 20 best alternatives have as much."""
MAX_PREAMBLE_BYTES = 1 << 18
"""Held back at the begin of a stream: SGLang's has one kB."""
_METRICS_S = 1.0

ENDLESS = Failure(502, "The engine's answer is larger than any should be.", "server_error", "engine_error")


@dataclass(slots=True)
class Job:
    """One request on its way: what is sent (also encoded), what holds for it, where it goes and under which name."""

    route: Route
    body: Body
    encoded: bytes
    effective: Effective
    names: tuple[str, ...] = ()
    engine_headers: dict[str, str] = field(default_factory=dict)
    upstream: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    hide_usage: bool = False
    fitted: bool = False
    over: bool = False
    """The engine has nothing left to do for it."""
    begun: Callable[[], None] | None = None
    """Told when the engine's answer begins."""
    guard: Guard | None = None
    """Looks for loops, if the client asked for that."""

    def answer_headers(self) -> dict[str, str]:
        guarded = {HEADER: str(self.guard.mode)} if self.guard is not None else {}
        return self.headers | self.effective.headers() | guarded

    @property
    def places(self) -> int:
        """Answers that it asks for: `n` of each prompt. Other protocols than OpenAI's have one."""
        if self.route.protocol is not Protocol.OPENAI:
            return 1
        return int(self.body.get("n", 1)) * max(1, batch(self.body))

    def sent(self) -> None:
        """A prompt has megabytes, an answer streams for minutes."""
        self.body, self.encoded = {}, b""
        if self.begun is not None:
            self.begun()

    def fit(self, failure: Failure) -> bool:
        """Make a limit of ours fit behind a prompt that leaves no room for it; False if that is not what failed.

        A limit that the client sent stays the client's business, and so does a prompt that is too long itself.
        """
        room = policy.room_left(failure.message) if failure.status == 400 else None
        ours = self.effective.cap_source in (CapSource.FILLED, CapSource.CLAMPED)
        if room is None or not ours or self.fitted or not self.body:
            return False
        self.fitted = True
        self.body = policy.with_max_tokens(self.body, room)
        self.encoded = encode(self.body)
        self.effective = replace(self.effective, max_tokens=room)
        return True


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def encode(body: Body) -> bytes:
    """Raises BadRequest for what JSON or UTF-8 cannot carry."""
    try:
        return _ENCODER.encode(body).encode()
    except UnicodeEncodeError:
        raise policy.BadRequest(
            "the text holds half of a surrogate pair, which is not valid Unicode."
        ) from None
    except ValueError:
        raise policy.BadRequest("a number is too large.") from None
    except RecursionError:  # writing needs a little more room than reading did
        raise policy.BadRequest("the body is nested too deeply.") from None


def make_job(route: Route, asked: Body, limits: policy.Limits, request_id: str) -> Job:
    """The request as the engine gets it. Raises BadRequest."""
    body, effective = route.rules(asked, limits)
    hide_usage = False
    if effective.stream and route.protocol is Protocol.OPENAI:
        body, hide_usage = policy.with_usage(body)
    body, headers, names = route.name(body, request_id)
    return Job(route, body, encode(body), effective, names, headers, hide_usage=hide_usage)


class Forwarder:
    """Talks to SGLang. Nothing of the client's headers goes there; nothing of SGLang's headers comes back."""

    def __init__(self, timings: Timings, metrics: Metrics) -> None:
        self._timings = timings
        self._metrics = metrics
        self._engine = Engine(timings.connect_s, timings.keep_alive_s)
        self._aborts = Aborts(self._engine)

    async def close(self) -> None:
        await self._aborts.close()
        self._engine.close()

    async def engine_metrics(self, base: str) -> str:
        """Those of the engine's metrics that ours are short of; nothing when it does not answer soon."""
        with contextlib.suppress(EngineRefused, TimeoutError):
            async with asyncio.timeout(_METRICS_S):
                answer = await self._engine.ask(base, "/metrics/")
                try:
                    text = await answer.whole(metrics_engine.MAX_BYTES)
                finally:
                    answer.close()
                if answer.status == 200 and len(text) <= metrics_engine.MAX_BYTES:
                    return metrics_engine.chosen(text)
        return ""

    async def whole(self, job: Job, ticket: Ticket) -> web.Response:
        """The answer in one piece, read to its end first: a lost engine is a 502, not half an answer."""
        answer: Incoming | None = None
        try:
            async with ticket:
                while answer is None:
                    try:
                        answer = await self._open(job)
                    except _Refit:
                        continue
                job.sent()
                return await self._relay(job, answer, ticket.seen)
        except (Cut, EngineRefused) as error:
            _ended(ticket.seen, error)
            return error.failure.response(job.answer_headers(), job.route.protocol)
        finally:
            self._leave(job, ticket.seen)
            if answer is not None:
                answer.close()

    def outlet(self, request: web.Request, job: Job) -> Outlet:
        """Where this job's stream will come out; it may begin before there is an engine to ask."""
        observer = Observer(job.route.protocol, Seen(), hide_usage=job.hide_usage)
        return Outlet(request, self._metrics, job.route.protocol, observer)

    async def refuse(self, out: Outlet, failure: Failure) -> web.StreamResponse:
        """A request that is not sent on, after its answer has begun."""
        assert out.response is not None
        await out.fail(failure, self._timings.farewell_s)
        return out.response

    async def stream(self, out: Outlet, job: Job, ticket: Ticket) -> web.StreamResponse:
        """Server-sent events: the engine's bytes, unchanged, as fast as the client takes them."""
        out.observer.seen = ticket.seen
        answer: Incoming | None = None

        async def alive() -> None:
            # The engine sends its first byte after the prefill, which can take minutes.
            await out.start(job.answer_headers())
            await out.keep_alive()

        try:
            async with ticket:
                while True:
                    try:
                        answer = await self._open(job, alive)
                        if out.response is None and answer.media_type != "text/event-stream":
                            return await self._relay(job, answer, ticket.seen)
                        await self._pump(job, answer, out)
                        break
                    except _Refit:
                        if answer is not None:
                            answer.close()
                        out.events = WholeEvents(job.route.protocol)
        except (Cut, EngineRefused) as error:
            _ended(ticket.seen, error)
            if out.response is None:
                return error.failure.response(job.answer_headers(), job.route.protocol)
            await out.fail(error.failure, self._timings.farewell_s)
        except ClientGone:
            self._metrics.clients_gone += 1
        finally:
            job.over = job.over or out.events.done  # many clients leave at the last event
            self._leave(job, ticket.seen)
            if answer is not None:
                answer.close()
        return out.response or web.Response(status=499)  # nobody reads it

    async def _pump(self, job: Job, answer: Incoming, out: Outlet) -> None:
        """Raises EngineRefused when the stream ends before its last event, ClientGone when writing fails."""
        held = b""
        preamble = job.route.protocol.preamble
        hand_on: HandOn | None = None
        while True:
            try:
                chunk = await answer.next(hand_on)
            except EngineRefused:
                if not out.events.done:
                    raise
                chunk = None  # only the end of its HTTP is missing
            if chunk is None:
                break
            if out.is_behind:
                await out.catch_up()
            elif not chunk:
                await out.start(job.answer_headers())
                await out.keep_alive()
            if not chunk:
                continue
            ready = held + out.events.feed(chunk)
            if preamble and (told := _first_told(ready, preamble)) is not None:
                self._check_first(job, told)
                preamble = ()
            if len(ready) > MAX_PREAMBLE_BYTES:
                preamble = ()
            held = ready if preamble else b""
            if not ready or preamble:
                continue
            job.sent()
            await out.start(job.answer_headers())
            await out.write(out.observer.look(ready))
            if job.guard is None:
                hand_on = out.hand_on
            elif (loop := job.guard.look(ready)) is not None:
                await self._looped(job, job.guard, loop, out)
        rest = held + out.events.flush()
        if not out.events.done:
            raise EngineRefused(LOST)
        await out.start(job.answer_headers())
        await out.write(out.observer.look(rest))
        job.over = True
        await out.end()

    async def _looped(self, job: Job, guard: Guard, loop: Loop, out: Outlet) -> None:
        """Told beside the events; raises EngineRefused where the client wants it ended."""
        self._metrics.loops[job.route.path, guard.mode] += 1
        if out.events.at_boundary:
            await out.write(f": x-dsv41-loop {loop}\n\n".encode())
        if guard.mode is Mode.STOP and not out.events.done:
            raise EngineRefused(guard.failure(loop))

    def _check_first(self, job: Job, told: bytes) -> None:
        """A refusal that SGLang wraps into a 200 and a stream, because it begins before it has looked.

        Raises _Refit when another limit helps, EngineRefused with the status it should have had.
        """
        name, _, content = told.partition(b"\n")
        if name not in (b"event: error", b"event: response.failed"):
            return
        try:
            said = json.loads(content.removeprefix(b"data: "))
            error = said["error"] if "error" in said else said["response"]["error"]
            failure = from_engine(400, json.dumps({"error": {"message": error["message"]}}).encode())
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if job.fit(failure):
            raise _Refit
        if failure.code == TOO_LONG:
            status = 400
        elif name == b"event: error":
            status = anthropic_status(str(error.get("type")))
        else:
            return  # the object fails: every client of this protocol knows that
        job.over = True
        raise EngineRefused(failure if status == 400 else replace(failure, status=status, type="server_error"))

    async def _relay(self, job: Job, answer: Incoming, seen: Seen) -> web.Response:
        content = await answer.whole(MAX_ANSWER_BYTES)
        if len(content) > MAX_ANSWER_BYTES:
            raise EngineRefused(ENDLESS)
        kind = {"Content-Type": answer.content_type or "application/json"}
        if job.route.generates:
            said = json_object(content)
            if said is None:
                raise EngineRefused(LOST)  # half of one, if its head did not say how long it is
            seen.read(job.route.protocol, said)
            seen.leaked = markup.in_answer(job.route.protocol, content, said)
            if job.guard is not None and (loop := job.guard.look_at_answer(said)) is not None:
                self._metrics.loops[job.route.path, job.guard.mode] += 1
                kind["x-dsv41-loop"] = str(loop)
        job.over = True
        return web.Response(body=content, headers=job.answer_headers() | seen.headers() | kind)

    async def _open(self, job: Job, alive: Callable[[], Awaitable[None]] | None = None) -> Incoming:
        """The engine's 200; `alive` is called now and then while it is waited for.

        Raises EngineRefused for anything else, _Refit when another limit helps, and what `alive` raises.
        """
        try:
            answer = await self._engine.ask(job.upstream, job.route.path, job.encoded, job.engine_headers)
        except EngineAbsent:
            # It died since the supervisor last looked, so it never saw this request.
            job.over = True
            raise
        is_good = False
        try:
            while not await answer.begins():
                if alive is not None:
                    await alive()
            is_good = answer.status == 200
            if is_good:
                return answer
            failure = await self._failure(answer)
        finally:
            if not is_good:
                answer.close()
        if job.fit(failure):
            raise _Refit
        job.over = True
        raise EngineRefused(failure)

    async def _failure(self, answer: Incoming) -> Failure:
        body = await answer.whole(MAX_ERROR_BYTES)
        if answer.status in (401, 403) or not 400 <= answer.status < 600:
            # Not the client's key: ours is the only one it gave, and the engine has none.
            message = f"The engine answered {answer.status}, which it never should."
            return Failure(502, message, "server_error", "engine_error")
        failure = from_engine(answer.status, body)
        return replace(failure, retry_after_s=RETRY_SOON_S) if failure.status in (429, 503) else failure

    def _leave(self, job: Job, seen: Seen) -> None:
        """Whatever ended this request, the engine does not work on for nobody."""
        if not job.over:
            seen.finish = seen.finish or "client_gone"
            self._aborts.send(job.upstream, job.names)
        if job.route.generates:
            self._metrics.answered(job.route.path, seen)


class _Refit(Exception):
    """The job was changed and is to be sent again."""


def _ended(seen: Seen, error: Cut | EngineRefused) -> None:
    code = error.failure.code
    seen.finish = code if code in ("engine_lost", "repetition") else "error"


def _first_told(events: bytes, preamble: tuple[bytes, ...]) -> bytes | None:
    """The first whole event behind the preamble; None when it has not come yet."""
    for event in events.split(b"\n\n")[:-1]:
        if event and not event.startswith(preamble):
            return event
    return None
