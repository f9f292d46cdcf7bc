"""One address that is listened on, and what is said when it cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

from ..errors import Dsv41Error, Stage
from .app import quiet
from .door import HANDSHAKE_S, Connection, Door

MAX_HEADER_BYTES = 16 << 10
IDLE_CONNECTION_S = 75.0
"""Longer than the 60 s after which common proxies drop an idle connection themselves."""
LINGER_S = 5.0
"""A body that was refused by its head is read and thrown away for this long: closed at once, its client would be reset
before it has seen why."""
BACKLOG = 1024
"""libuv takes one connection a turn, so that each is looked at before a burst has every descriptor; asyncio's own loop
would take as many as this."""


class Site:
    """An address that is listened on. `stop` ends listening, and leaves the connections as they are."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    async def stop(self) -> None:
        self._server.close()


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, address: str, port: int, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Site]:
    """Stopping the site ends listening; the end of the block ends the connections. Raises Dsv41Error."""
    door = Door()
    app.middlewares.insert(0, door.busy)
    runner = web.AppRunner(
        app,
        handle_signals=False,
        handler_cancellation=True,  # a client that left ends its handler, which closes the engine's side
        shutdown_timeout=1.0,
    )
    await runner.setup()
    http = runner.server
    assert http is not None

    def connection() -> Connection:
        return Connection(
            door,
            http,
            access_log=None,
            logger=quiet,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            keepalive_timeout=IDLE_CONNECTION_S,
            lingering_time=LINGER_S,
        )

    watching = asyncio.create_task(door.watch())
    try:
        server = await asyncio.get_running_loop().create_server(
            connection, sock=_listens(address, port), backlog=BACKLOG, ssl=tls,
            ssl_handshake_timeout=HANDSHAKE_S if tls is not None else None,
        )  # fmt: skip
        site = Site(server)
        try:
            yield site
        finally:
            await site.stop()
    finally:
        watching.cancel()
        await runner.cleanup()


def _listens(address: str, port: int) -> socket.socket:
    """A socket that listens already: uvloop says nothing when that fails, and would serve nobody."""
    try:
        return socket.create_server((address, port), backlog=BACKLOG)
    except OSError as error:
        raise _cannot_listen(address, port, error) from None


def _cannot_listen(address: str, port: int, error: OSError) -> Dsv41Error:
    where = f"{address}:{port}"
    if error.errno == errno.EADDRINUSE:
        what, hint, transient = f"{where} is taken.", f"Find who has it: ss -ltnp 'sport = :{port}'.", True
    elif error.errno == errno.EADDRNOTAVAIL:
        what, hint, transient = (
            f"{address} is not an address of this machine now.",
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
