"""TCP echo on a rail: a bounded listener at one end, a payload of many packets from the other.

Finds what a ping does not: a firewall that lets ICMP through and nothing else, a path that loses large packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import socket
import time
from dataclasses import dataclass, field

PAYLOAD_BYTES = 1 << 20
"""More than a hundred packets of 9000 bytes."""
MAX_OPEN_S = 60.0
_TOKEN_BYTES = 32
_CHUNK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Echoed:
    """`problem` is None when every byte came back. `connected` tells a closed door from a stalled path."""

    connected: bool
    returned_bytes: int
    took_s: float
    problem: str | None


@dataclass(slots=True, eq=False)
class EchoListener:
    """One listener on one address, for one connection that knows the token; closes by itself."""

    address: str
    token: str = field(default_factory=lambda: secrets.token_hex(_TOKEN_BYTES))
    port: int = 0
    _server: asyncio.Server | None = None
    _closing: asyncio.TimerHandle | None = None
    _work: set[asyncio.Task[None]] = field(default_factory=set)

    async def open(self, seconds: float) -> None:
        """Listen for `seconds`. Raises OSError when the node does not hold the address."""
        self._server = await asyncio.start_server(self._serve, self.address, 0, backlog=4)
        self.port = self._server.sockets[0].getsockname()[1]
        self._closing = asyncio.get_running_loop().call_later(min(seconds, MAX_OPEN_S), self.close)

    @property
    def is_open(self) -> bool:
        return self._server is not None

    def close(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._work):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._work.add(task)
        try:
            # The port is open to everyone on the rail: who does not know the token gets nothing.
            given = await reader.readexactly(len(self.token))
            if not hmac.compare_digest(given, self.token.encode()):
                return
            if self._server is not None:
                self._server.close()  # One connection: nobody else has anything to look for here.
            left = PAYLOAD_BYTES
            while left > 0 and (chunk := await reader.read(_CHUNK_BYTES)):
                writer.write(chunk[:left])
                left -= len(chunk)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._work.discard(task)
            with contextlib.suppress(OSError):
                writer.close()


async def echo(source: str, target: str, port: int, token: str, *, seconds: float) -> Echoed:
    """Send the payload from `source` and compare what comes back, within `seconds`."""
    began = time.monotonic()
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    sock.setblocking(False)
    payload = secrets.token_bytes(PAYLOAD_BYTES)
    returned = bytearray()
    connected = False

    def result(problem: str | None) -> Echoed:
        return Echoed(connected, len(returned), round(time.monotonic() - began, 4), problem)

    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            sock.bind((source, 0))
            await loop.sock_connect(sock, (target, port))
            connected = True
            await loop.sock_sendall(sock, token.encode())
            sending = asyncio.ensure_future(loop.sock_sendall(sock, payload))
            try:
                while len(returned) < len(payload):
                    chunk = await loop.sock_recv(sock, _CHUNK_BYTES)
                    if not chunk:
                        return result(f"{target} closed the connection after {len(returned)} of {PAYLOAD_BYTES} bytes")
                    returned += chunk
            finally:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await sending
    except TimeoutError:
        if not connected:
            return result(f"no TCP connection to {target} within {seconds:g} s")
        return result(f"{len(returned)} of {PAYLOAD_BYTES} bytes came back from {target} within {seconds:g} s")
    except OSError as error:
        # asyncio puts a sentence of its own into strerror.
        return result(f"TCP to {target}: {os.strerror(error.errno) if error.errno else error}")
    finally:
        sock.close()
    return result(None if bytes(returned) == payload else f"what came back from {target} is not what was sent")
