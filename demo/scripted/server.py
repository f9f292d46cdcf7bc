"""The HTTP side of the scripted engine: what SGLang's head serves, and the little that the other ranks serve."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

from . import text
from .lines import Log
from .script import Script

HEALTH_TIMEOUT_S = 20.0
"""SGLANG_HEALTH_CHECK_TIMEOUT: a real /health waits this long for its one token."""
_HEADERS = {"X-DSV41-Engine": "scripted", "server": "uvicorn"}

Tell = Callable[[dict[str, Any]], None]


class Head:
    """Rank 0's server. `tell` sends an order to the scheduler, `heard` takes what it says."""

    def __init__(self, model: str, context_length: int, script: Script, log: Log, tell: Tell) -> None:
        self.warm = False
        self._model = model
        self._context_length = context_length
        self._script = script
        self._log = log
        self._tell = tell
        self._ids = itertools.count(1)
        self._queues: dict[int, asyncio.Queue[int]] = {}
        self._scheduler: dict[str, float] = {}
        self._totals: Counter[tuple[str, bool]] = Counter()
        self._n_active = 0

    @property
    def n_running(self) -> int:
        return len(self._queues)

    def heard(self, message: dict[str, Any]) -> None:
        if "token" in message and (queue := self._queues.get(message["token"])) is not None:
            queue.put_nowait(message["n"])
        if "counters" in message:
            self._scheduler = message["counters"]

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._access])
        app.add_routes(
            [
                web.get("/ready", self._ready),
                web.get("/health", self._health),
                web.get("/health_generate", self._health),
                web.get("/ping", self._ready),
                web.get("/v1/models", self._models),
                web.get("/model_info", self._model_info),
                web.get("/metrics", self._metrics),
                web.get("/metrics/", self._metrics),
                web.post("/v1/chat/completions", lambda request: self._answer(request, chat=True)),
                web.post("/v1/completions", lambda request: self._answer(request, chat=False)),
            ]
        )
        return app

    @web.middleware
    async def _access(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self._n_active += 1
        try:
            response = await handler(request)
            if not response.prepared:
                response.headers.update(_HEADERS)
            self._log_access(request, response.status)
            return response
        except web.HTTPException as error:
            self._log_access(request, error.status)
            raise
        finally:
            self._n_active -= 1

    def _log_access(self, request: web.Request, status: int) -> None:
        peer = request.transport.get_extra_info("peername") if request.transport else None
        where = f"{peer[0]}:{peer[1]}" if peer else "-"
        # The real one logs a probe of its health as well.
        self._log(f'INFO:     {where} - "{request.method} {request.path} HTTP/1.1" {status}')

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.warm else 503)

    async def _health(self, _: web.Request) -> web.Response:
        if not self.warm:
            return web.Response(status=503)
        if self._script.now.lie or self._queues:
            return web.Response()
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                async for _token in self._tokens(n_prompt=1, n_tokens=1):
                    pass
        except TimeoutError:
            return web.Response(status=503)
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        card = {
            "id": self._model,
            "object": "model",
            "created": 0,
            "owned_by": "dsv41-scripted-engine",
            "root": self._model,
            "parent": None,
            "max_model_len": self._context_length,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def _model_info(self, _: web.Request) -> web.Response:
        return web.json_response({"model_path": self._model, "is_generation": True, "engine": text.FINGERPRINT})

    async def _tokens(self, n_prompt: int, n_tokens: int) -> AsyncIterator[int]:
        """Numbers of this request's tokens, as the ranks make them. Ends the request when the reader goes away."""
        number, queue = next(self._ids), asyncio.Queue[int]()
        self._queues[number] = queue
        try:
            self._tell({"id": number, "n_prompt": n_prompt, "n_tokens": n_tokens})
            made = 0
            while made < n_tokens:
                made = await queue.get()
                yield made
        finally:
            del self._queues[number]
            self._tell({"abort": number})

    async def _answer(self, request: web.Request, chat: bool) -> web.StreamResponse:
        try:
            body = await request.json()
            if not isinstance(body, dict):
                raise text.BadRequest("body: Input should be a valid object")
            prompt = text.prompt_of(body, chat)
            tokens, finish = text.tokens_of(body, prompt)
        except (ValueError, text.BadRequest) as error:
            return web.json_response(text.error(str(error), 400, "Bad Request"), status=400)
        if not self.warm:
            return web.json_response(text.error("The engine is not ready.", 503, "Service Unavailable"), status=503)
        answer = text.Answer(str(body.get("model", self._model)), chat)
        n_prompt = max(1, len(prompt.split()))
        streaming = bool(body.get("stream"))
        if streaming:
            options = body.get("stream_options") or {}
            response = await self._stream(request, answer, tokens, finish, n_prompt, bool(options.get("include_usage")))
        else:
            async with contextlib.aclosing(self._tokens(n_prompt, len(tokens))) as made:
                async for _ in made:
                    pass
            response = web.json_response(answer.whole("".join(tokens), finish, n_prompt, len(tokens)))
        # As in the real one, these two move when a request ends and not before.
        self._totals["prompt_tokens", streaming] += n_prompt
        self._totals["generation_tokens", streaming] += len(tokens)
        self._totals["num_requests", streaming] += 1
        return response

    async def _stream(
        self, request: web.Request, answer: text.Answer, tokens: list[str], finish: str, n_prompt: int, usage: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_HEADERS | {"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)

        async def send(document: dict[str, Any]) -> None:
            await response.write(b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n")

        async with contextlib.aclosing(self._tokens(n_prompt, len(tokens))) as made:
            sent = 0
            async for n in made:
                if sent == 0:
                    await send(answer.chunk(None, first=True))
                await send(answer.chunk("".join(tokens[sent:n])))
                sent = n
        await send(answer.chunk(None, finish))
        if usage:
            await send(answer.usage_chunk(n_prompt, len(tokens)))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self.metrics_text(), content_type="text/plain")

    def metrics_text(self) -> str:
        """Names, labels and habits of sglang 0.5.23; the figures are of the scripted engine."""
        model = f'engine_type="unified",model_name="{self._model}"'
        rank = f'{model},moe_ep_rank="0",pp_rank="0",tp_rank="0"'
        now = self._scheduler
        lines = [
            f"sglang:num_running_reqs{{{rank}}} {now.get('n_running', 0):.1f}",
            f"sglang:num_queue_reqs{{{rank}}} 0.0",
            f"sglang:gen_throughput{{{rank}}} {now.get('gen_throughput', 0):.1f}",
            f'sglang:realtime_tokens_total{{{rank},mode="prefill_compute"}} {now.get("prefill_tokens", 0):.1f}',
            f'sglang:realtime_tokens_total{{{rank},mode="decode"}} {now.get("decode_tokens", 0):.1f}',
            f'sglang:http_requests_active{{endpoint="all",method="POST"}} {self._n_active:.1f}',
        ]
        for name, metric in (
            ("prompt_tokens", "prompt_tokens_total"),
            ("generation_tokens", "generation_tokens_total"),
            ("num_requests", "num_requests_total"),
        ):
            for streaming in (False, True):
                label = f'{model},is_streaming="{str(streaming).lower()}"'
                lines.append(f"sglang:{metric}{{{label}}} {self._totals[name, streaming]:.1f}")
        kinds = {line.partition("{")[0] for line in lines}
        head = [f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}" for name in sorted(kinds)]
        return "\n".join(["# the scripted engine, not SGLang", *head, *lines, ""])
