"""What ranks other than 0 serve: /health is always 200, whatever state the fleet is in. By hand: it starts at once."""

from __future__ import annotations

import asyncio

_PATHS = (b"/ping", b"/health", b"/health_generate")
_OK = b"HTTP/1.1 200 OK\r\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\n"
_REST = b"server: uvicorn\r\nX-DSV41-Engine: scripted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


async def serve_dummy(host: str, port: int) -> asyncio.Server:
    """Listen until the process ends. Raises OSError when the port is taken."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].partition(b"?")[0]
            writer.write((_OK if path in _PATHS else _NOT_FOUND) + _REST)
            await writer.drain()
        except (OSError, EOFError, TimeoutError, IndexError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port)
