"""The real gateway before a real engine, in a thread; its supervisor says what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from dsv41_supervisor.gateway.config import GatewayConfig, Timings
from dsv41_supervisor.gateway.policy import Limits
from dsv41_supervisor.gateway.service import serving

from tests.harness.ports import free_port

KEY = "a-key-for-the-tests-0123456789"
NARROW_KEYS = ("a-narrow-key-for-tests-0123456789", "another-narrow-key-0123456789")
"""Each of one request at a time."""
FLEET_KEY = "f" * 64
START_S = 90.0


@dataclass
class Fleet:
    """What the supervisor says, and where clients go."""

    url: str
    says: dict[str, Any]
    loop: asyncio.AbstractEventLoop
    changed: asyncio.Event

    def say(self, **changes: Any) -> None:
        """Seen by the gateway at once."""

        def now() -> None:
            self.says |= {"version": self.says["version"] + 1} | changes
            self.changed.set()

        self.loop.call_soon_threadsafe(now)

    def lose_rank(self) -> None:
        self.say(ready=False, state="recovering", boot=None, reason="rank 2 on spark3 was lost", retry_after_s=11.0)

    def serve_again(self) -> None:
        """Returns when the gateway takes requests."""
        self.say(ready=True, state="serving", boot=f"boot-{self.says['version']}", reason=None, retry_after_s=0.0)
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(self.url + "/ready", timeout=60):
                return
            assert time.monotonic() < deadline, f"the gateway is not ready {START_S:g} s after its fleet"
            time.sleep(0.05)


@contextlib.contextmanager
def gateway(engine_port: int, directory: Path, *, context_length: int, keep_alive_s: float = 5.0) -> Iterator[Fleet]:
    """A gateway that serves; its thread is gone afterwards."""
    narrow = "".join(f"narrow-{i}:{key} requests=1\n" for i, key in enumerate(NARROW_KEYS))
    (directory / "api-keys").write_text(f"me:{KEY}\n{narrow}")
    (directory / "fleet-key").write_text(FLEET_KEY + "\n")
    for name in ("api-keys", "fleet-key"):
        (directory / name).chmod(0o600)
    ports = free_port(), free_port()
    config = GatewayConfig(
        address="127.0.0.1", port=ports[0], supervisor_url=f"http://127.0.0.1:{ports[1]}", fleet="test",
        fleet_key_file=directory / "fleet-key", keys_file=directory / "api-keys",
        limits=Limits("demo", context_length), timings=Timings(keep_alive_s=keep_alive_s, stop_grace_s=0.2),
    )  # fmt: skip
    says = {
        "version": 1, "ready": True, "reason": None, "state": "serving", "boot": "boot-1",
        "upstream": f"http://127.0.0.1:{engine_port}", "served_model_name": "demo", "retry_after_s": 0.0,
        "detail": None,
    }  # fmt: skip
    loop = asyncio.new_event_loop()
    fleet = Fleet(f"http://127.0.0.1:{ports[0]}", says, loop, asyncio.Event())
    up, down, failed = threading.Event(), asyncio.Event(), []

    async def readiness(request: web.Request) -> web.Response:
        return await _readiness(fleet, request)

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/fleet/readiness", readiness)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", ports[1]).start()
        async with serving(config):
            up.set()
            await down.wait()
        await runner.cleanup()

    def thread() -> None:
        try:
            loop.run_until_complete(run())
        except BaseException as error:
            failed.append(error)
            up.set()
            raise
        finally:
            loop.close()

    worker = threading.Thread(target=thread, name="gateway")
    worker.start()
    assert up.wait(START_S) and not failed, f"the gateway did not start in {START_S:g} s: {failed}"
    try:
        yield fleet
    finally:
        loop.call_soon_threadsafe(down.set)
        worker.join(START_S)
        assert not worker.is_alive(), f"the gateway still runs {START_S:g} s after it was told to stop"


async def _readiness(fleet: Fleet, request: web.Request) -> web.Response:
    """A long poll, as the head's supervisor answers it."""
    if request.query.get("since") == str(fleet.says["version"]):
        fleet.changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(request.query["wait_s"])):
                await fleet.changed.wait()
    return web.json_response(fleet.says)
