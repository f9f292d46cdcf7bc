"""One address that is listened on, and what is said when it cannot be."""

from __future__ import annotations

import contextlib
import errno
import os
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

from ..errors import Dsv41Error, Stage
from .app import quiet

MAX_HEADER_BYTES = 16 << 10
IDLE_CONNECTION_S = 75.0
"""Longer than the 60 s after which common proxies drop an idle connection themselves."""


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, address: str, port: int, tls: ssl.SSLContext | None = None
) -> AsyncIterator[web.BaseSite]:
    """Stopping the site ends listening; the end of the block ends the connections. Raises Dsv41Error."""
    runner = web.AppRunner(
        app,
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
        site = web.TCPSite(runner, address, port, backlog=1024, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            raise _cannot_listen(address, port, error) from None
        yield site
    finally:
        await runner.cleanup()


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
