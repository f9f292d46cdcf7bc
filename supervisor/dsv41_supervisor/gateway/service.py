"""The gateway's process: start, serve, stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hmac
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from .. import journal
from ..errors import Dsv41Error, Exit, Stage
from ..journal import log
from ..rank.notify import notify
from .app import Gateway
from .config import GatewayConfig
from .forward import Forwarder
from .keys import KeyFile, digest
from .listening import listening
from .metrics import Metrics
from .readiness import Readiness, Watcher
from .running import Running
from .tls import Tls
from .waiting import Lobby

if TYPE_CHECKING:
    from ..settings import Settings


def run(settings: Settings, node: str) -> int:
    """Serve until SIGTERM or SIGINT. Raises Dsv41Error when it cannot start."""
    config = GatewayConfig.from_settings(settings, node)
    with journal.fields(stage="gateway", node=node), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_told(config))
    return Exit.OK


async def _until_told(config: GatewayConfig) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    async with serving(config) as gateway:
        if gateway.tls is not None:
            loop.add_signal_handler(signal.SIGHUP, lambda tls=gateway.tls: tls.reload(always=True))
        else:
            loop.add_signal_handler(signal.SIGHUP, log.info, "nothing to read again: keys are with every request")
        scheme = "http" if config.tls is None else "https"
        log.info("the gateway listens on %s://%s:%d%s", scheme, config.address, config.port, _who(config))
        if config.tls is None and not ip_address(config.address).is_loopback:
            log.warning("keys and prompts come to %s unencrypted: set gateway.tls", config.address)
        if config.extra_address is not None:
            log.info("its /metrics are on http://%s:%d", config.extra_address, config.port)
        gc.freeze()  # what is here now stays: a full collection would look at all of it, for 20 ms
        notify("READY=1")
        done, _ = await asyncio.wait(
            {asyncio.ensure_future(told.wait()), gateway.watching}, return_when=asyncio.FIRST_COMPLETED
        )
        if gateway.watching in done:
            gateway.watching.result()  # it never ends by itself: raises
        notify("STOPPING=1")
        log.info("the gateway stops")


@dataclass(frozen=True, slots=True)
class Serving:
    """A gateway that listens: the task that watches the fleet, and its certificate."""

    watching: asyncio.Task[None]
    tls: Tls | None


@contextlib.asynccontextmanager
async def serving(config: GatewayConfig) -> AsyncIterator[Serving]:
    """A gateway that listens. Raises Dsv41Error if it cannot start."""
    tls = Tls(config.tls) if config.tls is not None else None
    keys = KeyFile(config.keys_file) if config.keys_file is not None else None
    metrics, running = Metrics(), Running()

    def changed(now: Readiness) -> None:
        running.fleet_changed(now)
        lobby.fleet_changed(now)

    fleet_key = read_fleet_key(config.fleet_key_file)
    watcher = Watcher(
        config.supervisor_url,
        config.fleet,
        fleet_key,
        config.timings.peer_timeout_s,
        on_change=changed,
    )
    lobby = Lobby(
        config.lanes, config.patience, lambda: watcher.current, alive_s=config.timings.keep_alive_s
    )
    forwarder = Forwarder(config.timings, metrics)
    hashed = digest(fleet_key)
    gateway = Gateway(
        config, keys, forwarder, running, lobby, metrics, lambda: watcher.current,
        is_fleet_key=lambda key: hmac.compare_digest(hashed, digest(key)),
    )  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(forwarder.close)
        users = listening(gateway.app(), config.address, config.port, tls.context if tls is not None else None)
        site = await stack.enter_async_context(users)
        if config.extra_address is not None:
            management = listening(gateway.management_app(), config.extra_address, config.port)
            await stack.enter_async_context(management)
        watching = asyncio.create_task(watcher.run())
        looking = asyncio.create_task(tls.watch(config.timings.certificate_s)) if tls is not None else None
        try:
            yield Serving(watching, tls)
        finally:
            if looking is not None:
                looking.cancel()
            await site.stop()
            lobby.stop()
            await _let_finish(running, config.timings.stop_grace_s)
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


async def _let_finish(running: Running, grace_s: float) -> None:
    """Requests under way may finish for a while; then each is ended with an error its client can read."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            while running.tickets:
                await asyncio.sleep(0.05)
    running.stop()


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
