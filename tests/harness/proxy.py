"""A TCP proxy that delays, stalls, cuts and drops what goes through it, from inside the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from dataclasses import dataclass, field


@dataclass
class Weather:
    """What the proxy does to the bytes of every connection, both ways; changed while it runs."""

    delay_s: float = 0.0
    """One way."""
    stall_s: float = 0.0
    """Longest extra wait of a piece; drawn evenly."""
    cut: float = 0.0
    """Fraction of the pieces at which the connection is reset."""
    refuse: float = 0.0
    """Fraction of the connections that are reset when they are made."""
    held: bool = False
    """Nothing goes through at all, and nothing is closed."""


@dataclass
class Proxy:
    """Listens on a socket made elsewhere and connects to `target`."""

    target: tuple[str, int]
    weather: Weather = field(default_factory=Weather)
    seed: int = 41
    n_connections: int = 0
    n_cut: int = 0
    _server: asyncio.Server | None = None
    _pumps: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self, listening: socket.socket) -> None:
        self._rng = random.Random(self.seed)
        self._server = await asyncio.start_server(self._connected, sock=listening)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._pumps):
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        if self._rng.random() < self.weather.refuse:
            self.n_cut += 1
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        both = (writer, far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.ensure_future(self._pump(source, sink, both))
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, both: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        """Pieces keep their order; each leaves `delay_s` after it came, so that a delay does not narrow the pipe."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        async def deliver() -> None:
            while True:
                due_s, piece = await pieces.get()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                while self.weather.held:
                    await asyncio.sleep(0.05)
                if self._rng.random() < self.weather.cut:
                    self.n_cut += 1
                    for writer in both:
                        writer.transport.abort()
                    return
                if not piece:
                    with contextlib.suppress(OSError, RuntimeError):
                        sink.write_eof()
                    return
                sink.write(piece)
                await sink.drain()

        delivering = asyncio.ensure_future(deliver())
        try:
            while not delivering.done():
                piece = await source.read(65536)
                wait_s = self.weather.delay_s + self._rng.random() * self.weather.stall_s
                pieces.put_nowait((loop.time() + wait_s, piece))
                if not piece:
                    break
            await delivering
        except OSError:
            for writer in both:
                writer.transport.abort()
        finally:
            delivering.cancel()
