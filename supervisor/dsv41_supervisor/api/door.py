"""The listening socket, and who may stay connected to it.

aiohttp waits for a request's head without a limit, so a client that sends a byte a minute would hold a connection, and
a few hundred of them every descriptor the supervisor has: the memory guard reads files too. Here a connection that
has no request being answered is closed after `IDLE_S`, and there are at most so many, in all and from one address.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter

from aiohttp import web

from ..journal import log

IDLE_S = 30.0
"""Longer than our own clients keep a connection (15 s), so that none is closed under a request."""
HEAD_S = 10.0
"""For a new connection's first request to be whole."""
LOOK_S = 1.0
MAX_CONNECTIONS = 512
MAX_FROM_ONE_ADDRESS = 192
MAX_HEAD_BYTES = 8190


class Door:
    """Listens for an application; `busy` is what a request's handler runs in."""

    def __init__(self) -> None:
        # aiohttp's protocols have slots and take no weak reference; `_sweep` lets go of those that have ended.
        self._idle_since_s: dict[asyncio.BaseProtocol, float] = {}
        self._used: set[asyncio.BaseProtocol] = set()
        self._busy: Counter[asyncio.BaseProtocol] = Counter()
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._turned_away = 0
        self.from_address: Counter[str] = Counter()

    async def open(self, app: web.Application, address: str, port: int) -> None:
        """Listen. Raises OSError when the address or port cannot be had."""
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=1, max_line_size=MAX_HEAD_BYTES, max_field_size=MAX_HEAD_BYTES,
            logger=_quiet(),
        )  # fmt: skip
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Threshold(self), address, port, backlog=128)
        except OSError:
            await self.close()
            raise
        self._sweeping = loop.create_task(self._sweep())

    async def close(self) -> None:
        """Stop listening, end what is connected. Safe to repeat."""
        if self._server is not None:
            self._server.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        self._server = self._sweeping = self._runner = None

    @contextlib.contextmanager
    def busy(self, request: web.Request):  # type: ignore[no-untyped-def]
        """A whole request is being answered on this connection: it is not idle meanwhile."""
        protocol = request.protocol
        self._busy[protocol] += 1
        try:
            yield
        finally:
            self._busy[protocol] -= 1
            if not self._busy[protocol]:
                del self._busy[protocol]
            self._idle_since_s[protocol] = time.monotonic()
            self._used.add(protocol)

    def admit(self, transport: asyncio.Transport) -> asyncio.BaseProtocol | None:
        """The protocol that serves a new connection; None when there are too many."""
        server = self._runner.server if self._runner is not None else None
        if server is None:
            return None
        address = _address(transport)
        if self.from_address[address] >= MAX_FROM_ONE_ADDRESS:
            # Those that have ended meanwhile do not count.
            self._count()
        if len(server.connections) >= MAX_CONNECTIONS or self.from_address[address] >= MAX_FROM_ONE_ADDRESS:
            if self._turned_away == 0:
                log.warning("%d connections from %s, %d in all: turning more away",
                            self.from_address[address], address, len(server.connections))  # fmt: skip
            self._turned_away += 1
            return None
        self._turned_away = 0
        self.from_address[address] += 1
        protocol = server()
        self._idle_since_s[protocol] = time.monotonic()
        return protocol

    def _count(self) -> None:
        assert self._runner is not None and self._runner.server is not None
        living = [p.transport for p in self._runner.server.connections if p.transport is not None]
        self.from_address = Counter(_address(t) for t in living if not t.is_closing())

    async def _sweep(self) -> None:
        """Close who sends no request, or does not read its answer."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._runner is None or self._runner.server is None:
                return
            now = time.monotonic()
            living = set(self._runner.server.connections)
            self._idle_since_s = {p: since for p, since in self._idle_since_s.items() if p in living}
            self._used &= living
            self._busy = Counter({p: n for p, n in self._busy.items() if p in living and n})
            for protocol in living:
                transport = protocol.transport
                if transport is None:
                    continue
                limit_s = IDLE_S if protocol in self._used else HEAD_S
                idle_s = now - self._idle_since_s.get(protocol, now)
                if not self._busy[protocol] and idle_s > limit_s:
                    transport.abort()
            self._count()


class _Threshold(asyncio.Protocol):
    """A connection before it is known whether it may come in."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        protocol = self._door.admit(transport)
        if protocol is None:
            transport.abort()
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def _address(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""


def _quiet() -> logging.Logger:
    """aiohttp logs every broken request with its traceback, as an error: whoever can connect could fill the journal.
    What our own handlers do is caught and logged where it happens.
    """
    logger = logging.getLogger("dsv41.http")
    logger.setLevel(logging.CRITICAL)
    return logger
