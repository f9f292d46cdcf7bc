"""Whether the gateway of this node answers, asked as a load balancer asks it. Blocking, and bounded as a whole."""

from __future__ import annotations

import json
import socket
import time

from ..settings import Settings
from .facts import GatewayAnswer

MAX_ANSWER_BYTES = 64 << 10


def read_gateway(settings: Settings, seconds: float) -> GatewayAnswer:
    """One `GET /health` without a key. What goes wrong is in `problem`, with what was waited for."""
    address, port = settings.gateway.address, settings.gateway.port
    host = "127.0.0.1" if address.is_unspecified else str(address)
    where = f"http://{host}:{port}/health"
    try:
        status, body = _get(host, port, time.monotonic() + seconds)
    except TimeoutError:
        return GatewayAnswer(where=where, problem=f"does not answer within {seconds:g} s")
    except OSError as error:
        return GatewayAnswer(where=where, problem=f"does not answer ({error.strerror or error})")
    except ValueError:
        return GatewayAnswer(where=where, problem="does not speak HTTP")
    return GatewayAnswer(where=where, status=status, ours=_is_ours(body))


def _get(host: str, port: int, until_s: float) -> tuple[int, bytes]:
    """Status and body. Raises OSError, TimeoutError, or ValueError when it is no HTTP."""
    with socket.create_connection((host, port), timeout=max(0.01, until_s - time.monotonic())) as sock:
        sock.sendall(f"GET /health HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        raw = b""
        while len(raw) < MAX_ANSWER_BYTES:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            sock.settimeout(left_s)
            piece = sock.recv(8192)
            if not piece:
                break
            raw += piece
    head, _, body = raw.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        raise ValueError
    return int(words[1]), body


def _is_ours(body: bytes) -> bool:
    try:
        said = json.loads(body)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("status") in ("ok", "unavailable")
