"""Telling the engine to stop what nobody waits for any more.

Closing its connection stops a stream in a moment, but a request for a whole answer only when SGLang next looks,
up to 4 s later (measured: 1.9 to 3.2 s; SGLANG_REQUEST_STATE_WAIT_TIMEOUT). By its name it stops at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

from .engine import Engine
from .incoming import EngineRefused

AGAIN_AFTER_S = 0.5
"""A request that the engine had not read yet has no name there; the second time it has. Guess."""
_WAIT_S = 2.0
_MAX_BYTES = 1 << 16


class Aborts:
    """Aborts under way. `close` waits for them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, base: str, names: tuple[str, ...]) -> None:
        if names:
            task = asyncio.create_task(self._send(base, names))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._tasks)

    async def _send(self, base: str, names: tuple[str, ...]) -> None:
        for pause_s in (0.0, AGAIN_AFTER_S):
            await asyncio.sleep(pause_s)
            for name in names:
                # An engine that cannot be told has gone, or is about to see the closed connection itself.
                with contextlib.suppress(EngineRefused, TimeoutError):
                    async with asyncio.timeout(_WAIT_S):
                        asked = json.dumps({"rid": name}).encode()
                        answer = await self._engine.ask(base, "/abort_request", asked)
                        try:
                            await answer.whole(_MAX_BYTES)
                        finally:
                            answer.close()
