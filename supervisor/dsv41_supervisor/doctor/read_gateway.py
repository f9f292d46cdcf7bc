"""Whether the gateway of this node answers, asked as a load balancer asks it. Blocking, and bounded as a whole."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time

from ..settings import Settings
from .facts import GatewayAnswer

MAX_ANSWER_BYTES = 64 << 10


def read_gateway(settings: Settings, seconds: float) -> GatewayAnswer:
    """One `GET /health` without a key. What goes wrong is in `problem`, with what was waited for."""
    address, port = settings.gateway.address, settings.gateway.port
    host = "127.0.0.1" if address.is_unspecified else str(address)
    with_tls = settings.gateway.tls.certificate is not None
    where = f"{settings.gateway.url}/health"
    try:
        status, body = _get(host, port, time.monotonic() + seconds, with_tls=with_tls)
    except TimeoutError:
        return GatewayAnswer(where=where, problem=f"does not answer within {seconds:g} s")
    except OSError as error:
        return GatewayAnswer(where=where, problem=f"does not answer ({error.strerror or error})")
    except ValueError:
        return GatewayAnswer(where=where, problem="does not speak HTTP")
    return GatewayAnswer(where=where, status=status, ours=_is_ours(body))


def _get(host: str, port: int, until_s: float, *, with_tls: bool) -> tuple[int, bytes]:
    """Status and body. Raises OSError, TimeoutError, or ValueError when it is no HTTP."""
    with contextlib.ExitStack() as stack:
        left_s = max(0.01, until_s - time.monotonic())
        sock = stack.enter_context(socket.create_connection((host, port), timeout=left_s))
        if with_tls:
            sock = stack.enter_context(_unchecked().wrap_socket(sock))
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


def _unchecked() -> ssl.SSLContext:
    """Nothing secret is sent, and the certificate has the name that users know, not this address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _is_ours(body: bytes) -> bool:
    try:
        said = json.loads(body)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("status") in ("ok", "unavailable")
