"""The gateway's process: start, serve, stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from .. import journal
from ..errors import Dsv41Error, Exit, Stage
from ..journal import log
from ..rank.notify import notify
from .app import Gateway, quiet
from .config import GatewayConfig
from .forward import Forwarder
from .keys import KeyFile
from .metrics import Metrics
from .readiness import Readiness, Watcher
from .running import Running
from .waiting import Lobby

if TYPE_CHECKING:
    from ..settings import Settings

MAX_HEADER_BYTES = 16 << 10
IDLE_CONNECTION_S = 75.0
"""Longer than the 60 s after which common proxies drop an idle connection themselves."""


def run(settings: Settings, node: str) -> int:
    """Serve until SIGTERM or SIGINT. Raises Dsv41Error when it cannot start."""
    config = GatewayConfig.from_settings(settings, node)
    with journal.fields(stage="gateway", node=node):
        asyncio.run(_until_told(config))
    return Exit.OK


async def _until_told(config: GatewayConfig) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    async with serving(config) as watcher:
        log.info("the gateway listens on http://%s:%d%s", config.address, config.port, _who(config))
        notify("READY=1")
        done, _ = await asyncio.wait(
            {asyncio.ensure_future(told.wait()), watcher}, return_when=asyncio.FIRST_COMPLETED
        )
        if watcher in done:
            watcher.result()  # it never ends by itself: raises
        notify("STOPPING=1")
        log.info("the gateway stops")


@contextlib.asynccontextmanager
async def serving(config: GatewayConfig) -> AsyncIterator[asyncio.Task[None]]:
    """A gateway that listens; gives the task that watches the fleet. Raises Dsv41Error if it cannot start."""
    keys = KeyFile(config.keys_file) if config.keys_file is not None else None
    metrics, running = Metrics(), Running()

    def changed(now: Readiness) -> None:
        running.fleet_changed(now)
        lobby.fleet_changed(now)

    watcher = Watcher(
        config.supervisor_url,
        config.fleet,
        read_fleet_key(config.fleet_key_file),
        config.timings.peer_timeout_s,
        on_change=changed,
    )
    lobby = Lobby(config.lanes, config.patience, lambda: watcher.current)
    forwarder = Forwarder(config.timings, metrics)
    gateway = Gateway(config, keys, forwarder, running, lobby, metrics, lambda: watcher.current)
    runner = web.AppRunner(
        gateway.app(),
        handle_signals=False,
        handler_cancellation=True,  # a client that left ends its handler, which closes the engine's side
        access_log=None,
        logger=quiet,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        keepalive_timeout=IDLE_CONNECTION_S,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, config.address, config.port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            raise cannot_listen(config, error) from None
        watching = asyncio.create_task(watcher.run())
        try:
            yield watching
        finally:
            await site.stop()
            lobby.stop()
            await _let_finish(running, config.timings.stop_grace_s)
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
    finally:
        await runner.cleanup()
        await forwarder.close()


async def _let_finish(running: Running, grace_s: float) -> None:
    """Requests under way may finish for a while; then each is ended with an error its client can read."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            while running.tickets:
                await asyncio.sleep(0.05)
    running.stop()


def cannot_listen(config: GatewayConfig, error: OSError) -> Dsv41Error:
    where = f"{config.address}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        what, hint, transient = (
            f"{where} is taken.",
            f"Find who has it: ss -ltnp 'sport = :{config.port}'.",
            True,
        )
    elif error.errno == errno.EADDRNOTAVAIL:
        what, hint, transient = (
            f"{config.address} is not an address of this machine now.",
            "Look at ip -4 address.",
            True,
        )
    else:
        why = os.strerror(error.errno) if error.errno else str(error)
        what, hint, transient = (
            f"cannot listen on {where}: {why}.",
            "Ports below 1024 need a capability.",
            False,
        )
    return Dsv41Error(
        what,
        stage=Stage.GATEWAY,
        hint=f"{hint} Or set gateway.address and gateway.port.",
        transient=transient,
    )


def read_fleet_key(path: Path) -> str:
    """The key that supervisors share; the head's supervisor answers nobody without it."""
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        hint = "The gateway's user must be able to read fleet.key_file."
        raise Dsv41Error(
            f"cannot read the fleet key {path}: {why}.", stage=Stage.GATEWAY, hint=hint
        ) from None
    if not key or not key.isprintable() or " " in key:
        hint = "It holds one line: openssl rand -hex 32 makes it."
        raise Dsv41Error(f"the fleet key {path} is empty or not one word.", stage=Stage.GATEWAY, hint=hint)
    return key


def _who(config: GatewayConfig) -> str:
    return f"; keys from {config.keys_file}" if config.keys_file is not None else " and asks for no key"
