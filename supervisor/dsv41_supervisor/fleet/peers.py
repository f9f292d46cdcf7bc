"""The other supervisors over HTTP: every request carries the fleet's key and name, and has a bound."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from ..credentials import FLEET_KEY, credential
from ..errors import Dsv41Error, PeerUnreachable, Refusal, Refused, Stage
from ..settings import Settings
from ..units.words import look_at_supervisor

FLEET_HEADER = "X-DSV41-Fleet"
MIN_KEY_BYTES = 32
ALIVE_S = 4.0
"""For a supervisor whose loop turns, however much it has to do, to say so."""


def read_fleet_key(settings: Settings, node: str) -> str:
    """The key that this fleet's supervisors share: the unit's credential, else `fleet.key_file`.

    Raises Dsv41Error when it is missing, short, or open to others.
    """
    path = credential(FLEET_KEY) or Path(settings.path(settings.fleet.key_file, node))
    try:
        key = path.read_text().strip()
        mode = path.stat().st_mode & 0o777
    except (OSError, UnicodeDecodeError) as error:
        hint = "Put the same key, 32 bytes or more, on every node and name it in fleet.key_file."
        if isinstance(error, PermissionError):
            hint = "Run this as root, or as a member of the group that may read it."
        raise Dsv41Error(
            f"the fleet key {path} cannot be read: {getattr(error, 'strerror', 'not text')}.",
            stage=Stage.CONFIG, node=node, hint=hint,
        ) from None  # fmt: skip
    if not key.isascii() or any(c.isspace() or not c.isprintable() for c in key):
        raise Dsv41Error(
            f"the fleet key {path} holds more than one line, or characters that no key has.",
            stage=Stage.CONFIG,
            node=node,
            hint="Make one with: openssl rand -hex 32",
        )
    if len(key.encode()) < MIN_KEY_BYTES:
        raise Dsv41Error(
            f"the fleet key {path} has {len(key.encode())} bytes, expected {MIN_KEY_BYTES} or more.",
            stage=Stage.CONFIG, node=node, hint="Make one with: openssl rand -hex 32",
        )  # fmt: skip
    if mode & 0o007:
        raise Dsv41Error(
            f"the fleet key {path} can be read by everyone (mode {mode:o}).", stage=Stage.CONFIG, node=node,
            hint=f"Run chmod 640 {path}.",
        )  # fmt: skip
    return key


class SupervisorClient:
    """Calls to one node's supervisor."""

    def __init__(self, settings: Settings, node: str, key: str | None = None) -> None:
        here = settings.fleet.nodes[node]
        self._settings = settings
        self.node = node
        self.base = f"http://{here.management_address}:{here.supervisor_port}"
        key = key if key is not None else read_fleet_key(settings, node)
        self._headers = {"Authorization": f"Bearer {key}", FLEET_HEADER: settings.fleet.name}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> SupervisorClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def alive(self) -> None:
        """Return at once when the supervisor's loop turns. Raises PeerUnreachable when it does not answer for ALIVE_S:
        nothing was asked of it then, so nothing of it is done later."""
        await self.call("GET", "/liveness", timeout_s=ALIVE_S)

    async def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = 5
    ) -> dict[str, Any]:
        """One request. Raises PeerUnreachable (no answer in time) or Refused (the peer said why)."""
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers)
        try:
            async with self._session.request(
                method, self.base + path, json=body, timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=3)
            ) as answer:
                raw = await answer.json(content_type=None)
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._no_answer(error, method, path, timeout_s) from None
        except ValueError:
            raw, status = None, 0
        if not isinstance(raw, dict):
            raise Dsv41Error(
                f"{self.base}{path} did not answer as a dsv41 supervisor does.", stage=Stage.RANK, node=self.node,
                hint=f"Check what listens on {self.base}.",
            )  # fmt: skip
        if status == 401:
            raise Dsv41Error(
                f"{self.node} refuses this fleet key: its supervisor has another.", stage=Stage.CONFIG, node=self.node,
                hint="Put the same key on every node (fleet.key_file), then restart dsv41-supervisor there.",
            )  # fmt: skip
        if status >= 400:
            error = raw.get("error")
            error = error if isinstance(error, dict) else {}
            refusals = [Refusal.from_json(r) for r in error.get("refusals", ())]
            if refusals:
                raise Refused(refusals)
            raise Dsv41Error(
                f"{self.base}{path} answered {status}: {error.get('message', 'no reason given')}",
                stage=Stage.RANK, node=self.node, hint="Run dsv41 status, and see the supervisor's log on that node.",
            )  # fmt: skip
        return raw

    def _no_answer(self, error: Exception, method: str, path: str, timeout_s: float) -> PeerUnreachable:
        """Says what was waited for, and when an order may have come through although nobody said so."""
        what = f"the supervisor of {self.node} at {self.base} does not answer"
        hint = f"Check that dsv41-supervisor runs on {self.node} and that {self.base} can be reached."
        connected = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        if not (connected and isinstance(error, TimeoutError)):
            what += f" ({type(error).__name__})"
        elif path == "/liveness":
            what += f": it took the connection, and did not say within {timeout_s:g} s that it lives"
            hint = f"Its process or the network stands still. {look_at_supervisor(self._settings, self.node)}"
        else:
            what += f": {method} {path.partition('?')[0]} was waited for {timeout_s:g} s"
        what += "."
        if connected and method == "POST" and path.startswith("/fleet/"):
            what += f" The order ({path.removeprefix('/fleet/')}) may still be carried out."
            hint += " Run dsv41 status: it shows whether it was."
        return PeerUnreachable(what, stage=Stage.RANK, node=self.node, transient=True, hint=hint)
