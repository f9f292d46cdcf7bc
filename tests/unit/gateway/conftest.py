"""A gateway on loopback between a scripted engine and a scripted supervisor: real servers on real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import uvloop
from aiohttp import web
from dsv41_supervisor.gateway.config import GatewayConfig, Timings
from dsv41_supervisor.gateway.policy import Limits
from dsv41_supervisor.gateway.service import serving

from tests.harness.ports import free_port

KEY = "a-key-for-the-tests-0123456789"
FLEET_KEY = "f" * 64
MODEL = "deepseek-v4.1-flash"
Behaviour = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of the gateway's process."""
    return {"uvloop": uvloop.new_event_loop}


async def _serve(app: web.Application, port: int) -> web.AppRunner:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner


def chunk_event(text: str) -> bytes:
    """One event as SGLang writes it."""
    delta = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"content": text}}],
    }
    return b"data: " + json.dumps(delta, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


@dataclass
class Engine:
    """In SGLang's place. `behave`: what it does next; `left`: clients that left; `aborted`: requests, by name."""

    port: int = field(default_factory=free_port)
    seen: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    left: int = 0
    aborted: list[str] = field(default_factory=list)
    behave: Behaviour | None = None
    metrics: str = ""
    runner: web.AppRunner | None = None
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self.runner = await _serve(app, self.port)

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else {}
        if request.path == "/abort_request":
            self.aborted.append(body["rid"])
            return web.Response()
        if request.path == "/metrics/":
            return web.Response(text=self.metrics)
        self.seen.append((request.path, dict(request.headers), body))
        try:
            return await (self.behave or self.answer)(request, body)
        except (asyncio.CancelledError, ConnectionError):  # noticed, or written to
            self.left += 1
            raise

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body.get("stream"):
            return await self.streaming([chunk_event("vierzig"), chunk_event("zwei"), DONE])(request, body)
        return web.json_response({"object": "chat.completion", "choices": [{"message": {"content": "42"}}]})

    def streaming(self, chunks: list[bytes], gap_s: float = 0.0) -> Behaviour:
        async def behave(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
            out = await self.open(request)
            for chunk in chunks:
                await out.write(chunk)
                await asyncio.sleep(gap_s)
            await out.write_eof()
            return out

        return behave

    async def open(self, request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Secret": "engine"}
        )
        await out.prepare(request)
        return out

    async def stalls(self, request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        """One event, then silence until the test lets go."""
        out = await self.open(request)
        await out.write(chunk_event("erst"))
        await self.release.wait()
        await out.write(DONE)
        return out

    async def hangs(self, request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        """Says nothing at all until the test lets go, as in a long prefill."""
        await self.release.wait()
        return await self.answer(request, _)

    async def dies(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """The process is gone: the connection is reset, in the middle of an event if there is one."""
        if body.get("stream"):
            out = await self.open(request)
            await out.write(chunk_event("erst") + b'data: {"id": "c1", "cho')
            await asyncio.sleep(0.02)
        else:
            out = web.StreamResponse(headers={"Content-Length": "1000"})
            await out.prepare(request)
            await out.write(b'{"object": ')
        assert request.transport is not None
        request.transport.abort()
        return out


@dataclass
class Supervisor:
    """The head's supervisor, as far as a gateway sees it: `/fleet/readiness` with a long poll."""

    engine: Engine
    port: int = field(default_factory=free_port)
    says: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    polls: int = 0
    hang: bool = False
    runner: web.AppRunner | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.says = {
            "version": 1, "ready": True, "reason": None, "state": "serving", "boot": "boot-1",
            "upstream": f"http://127.0.0.1:{self.engine.port}", "served_model_name": MODEL,
            "retry_after_s": 0.0, "detail": None,
        }  # fmt: skip

    def say(self, **changes: Any) -> None:
        self.says = self.says | {"version": self.says["version"] + 1} | changes
        self._changed.set()
        self._changed = asyncio.Event()

    def lose_rank(self) -> None:
        self.say(
            ready=False, state="recovering", boot=None, reason="rank 2 on spark3 was lost",
            retry_after_s=11.2, detail="stopping the other ranks",
        )  # fmt: skip

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/fleet/readiness", self._readiness)
        self.runner = await _serve(app, self.port)

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    async def _readiness(self, request: web.Request) -> web.Response:
        self.polls += 1
        if request.headers.get("Authorization") != f"Bearer {FLEET_KEY}":
            return web.json_response({"error": {"message": "no"}}, status=401)
        if request.headers.get("X-DSV41-Fleet") != "test":
            return web.json_response({"error": {"message": "no"}}, status=409)
        if self.hang:
            await asyncio.Event().wait()
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        if request.query.get("since") == str(self.says["version"]):
            changed = self._changed
            try:
                async with asyncio.timeout(float(request.query["wait_s"])):
                    await changed.wait()
            except TimeoutError:
                pass
        return web.json_response(self.says)


@dataclass
class Fleet:
    """Everything a test touches."""

    engine: Engine
    supervisor: Supervisor
    config: GatewayConfig
    http: aiohttp.ClientSession
    keys_file: Path
    gateway: AsyncExitStack
    url: str = ""

    def post(self, path: str = "/v1/chat/completions", key: str | None = KEY, **body: Any) -> Any:
        if path in ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"):
            body.setdefault("messages", [{"role": "user", "content": "What is 19 + 23?"}])
        return self.http.post(self.url + path, json={"model": MODEL} | body, headers=bearer(key))

    def get(self, path: str, key: str | None = KEY) -> Any:
        return self.http.get(self.url + path, headers=bearer(key))

    async def metrics(self) -> str:
        async with self.get("/metrics", FLEET_KEY) as response:
            return str(await response.text())

    def head(self, length: int, *more: str, key: str = KEY, version: str = "1.1") -> bytes:
        """The head of a chat request, for tests that write to a socket themselves."""
        lines = [
            f"POST /v1/chat/completions HTTP/{version}", "Host: x", f"Authorization: Bearer {key}",
            "Content-Type: application/json", f"Content-Length: {length}", *more, "", "",
        ]  # fmt: skip
        return "\r\n".join(lines).encode()

    @staticmethod
    async def until(condition: Callable[[], Any], within_s: float = 5.0) -> float:
        """Wait for a condition with a deadline; gives the seconds it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < within_s, f"gave up waiting after {within_s} s"
            await asyncio.sleep(0.005)
        return time.monotonic() - began

    async def until_ready(self, ready: bool = True, within_s: float = 20.0) -> float:
        began = time.monotonic()
        while True:
            async with self.get("/ready") as response:
                if (response.status == 200) == ready:
                    return time.monotonic() - began
            assert time.monotonic() - began < within_s, f"readiness is not {ready} after {within_s} s"
            await asyncio.sleep(0.01)


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


Start = Callable[..., Awaitable[Fleet]]


@pytest_asyncio.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start a fleet double with a gateway; keyword arguments change its GatewayConfig or Timings."""
    async with AsyncExitStack() as stack:

        async def go(*, wait: bool = True, key_lines: str = f"me:{KEY}\n", **changes: Any) -> Fleet:
            engine = Engine()
            supervisor = Supervisor(engine)
            keys_file, fleet_key_file = tmp_path / "api-keys", tmp_path / "fleet-key"
            for path, text in ((keys_file, key_lines), (fleet_key_file, FLEET_KEY + "\n")):
                path.write_text(text)
                path.chmod(0o600)
            timings = Timings(
                peer_timeout_s=0.6, keep_alive_s=5.0, connect_s=1.0, farewell_s=0.5, stop_grace_s=0.2
            )
            named = {f.name for f in Timings.__dataclass_fields__.values()}
            timings = replace(timings, **{name: value for name, value in changes.items() if name in named})
            config = GatewayConfig(
                address="127.0.0.1",
                port=free_port(),
                supervisor_url=f"http://127.0.0.1:{supervisor.port}",
                fleet="test",
                fleet_key_file=fleet_key_file,
                limits=Limits(MODEL, context_length=262144, max_tokens_cap=32768),
                keys_file=keys_file,
                timings=timings,
            )
            config = replace(config, **{name: value for name, value in changes.items() if name not in named})
            await engine.start()
            stack.push_async_callback(engine.stop)
            await supervisor.start()
            stack.push_async_callback(supervisor.stop)
            gateway = await stack.enter_async_context(AsyncExitStack())
            await gateway.enter_async_context(serving(config))
            http = await stack.enter_async_context(aiohttp.ClientSession())
            fleet = Fleet(
                engine, supervisor, config, http, keys_file, gateway, f"http://127.0.0.1:{config.port}"
            )
            if wait:
                await fleet.until_ready()
            return fleet

        yield go


@pytest.fixture
def free_ports() -> Callable[[], int]:
    return free_port
