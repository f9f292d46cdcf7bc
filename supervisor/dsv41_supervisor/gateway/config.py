"""What the gateway needs of the settings, as one small frozen value; and timings that are not settings."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..credentials import API_KEYS, FLEET_KEY, TLS_CERTIFICATE, TLS_KEY, credential
from ..errors import Dsv41Error, Stage
from .admission import Lanes
from .policy import Limits
from .tls import TlsFiles
from .waiting import Patience

if TYPE_CHECKING:
    from ..settings import Settings


@dataclass(frozen=True, slots=True)
class Timings:
    """Waits of the gateway, in seconds."""

    peer_timeout_s: float = 3.0
    """A supervisor that has not answered for this long counts as gone."""
    keep_alive_s: float = 15.0
    """Silence on a stream before a comment is sent. Proxies commonly cut at 60."""
    connect_s: float = 2.0
    """Connecting to the engine on the same machine."""
    body_s: float = 120.0
    """Receiving one request's body."""
    farewell_s: float = 5.0
    """Delivering the error event to a client that reads slowly; then its connection is dropped."""
    certificate_s: float = 5.0
    """Between two looks whether the certificate files have changed."""
    stop_grace_s: float = 5.0
    """Running requests may finish for this long once the gateway is told to stop."""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Everything the gateway runs on."""

    address: str
    port: int
    supervisor_url: str
    fleet: str
    fleet_key_file: Path
    limits: Limits
    keys_file: Path | None
    """None: nobody needs a key (the settings allow that on loopback only)."""
    management_address: str | None = None
    """Where /metrics is, at the same port; None: where the users are."""
    tls: TlsFiles | None = None
    max_body_bytes: int = 64 << 20
    lanes: Lanes = field(default_factory=Lanes)
    patience: Patience = field(default_factory=Patience)
    timings: Timings = field(default_factory=Timings)

    @property
    def extra_address(self) -> str | None:
        """The management address, unless the users' address is or includes it."""
        return None if self.address in ("0.0.0.0", self.management_address) else self.management_address

    @classmethod
    def from_settings(cls, settings: Settings, node: str) -> GatewayConfig:
        """Raises Dsv41Error on a node that has no engine to pass requests to."""
        head = settings.fleet.head
        if node != head:
            raise Dsv41Error(
                f"the gateway runs on the head, which is {head}.",
                stage=Stage.GATEWAY,
                node=node,
                hint=f"Start dsv41 gateway --node {head} there; the engine listens on its loopback only.",
            )
        where = settings.fleet.nodes[head]
        said = settings.engine.environment.get("SGLANG_DEFAULT_THINKING", "")
        return cls(
            address=str(settings.gateway.address),
            port=settings.gateway.port,
            supervisor_url=f"http://{where.management_address}:{where.supervisor_port}",
            fleet=settings.fleet.name,
            fleet_key_file=credential(FLEET_KEY) or Path(settings.path(settings.fleet.key_file, node)),
            limits=Limits(
                served_model_name=settings.engine.served_model_name,
                context_length=settings.engine.context_length,
                max_tokens_cap=settings.gateway.max_tokens_cap,
                default_thinking=said.strip().lower() in {"1", "true", "yes", "y"},
            ),
            management_address=str(where.management_address),
            keys_file=_keys_file(settings, node) if settings.gateway.require_key else None,
            tls=_tls_files(settings, node),
            max_body_bytes=settings.gateway.max_body_bytes,
            lanes=_lanes(settings),
            patience=Patience(
                queue_s=settings.gateway.admission.queue_s,
                hold_s=settings.gateway.hold_s,
                hold_requests=settings.gateway.hold_requests,
            ),
            timings=Timings(peer_timeout_s=settings.supervisor.peer_timeout_s),
        )


def _keys_file(settings: Settings, node: str) -> Path:
    """The file itself where this user may read it: it is read again when it changes. A credential never changes."""
    path = Path(settings.path(settings.gateway.keys_file, node))
    return path if os.access(path, os.R_OK) else credential(API_KEYS) or path


def _tls_files(settings: Settings, node: str) -> TlsFiles | None:
    """The files themselves where this user may read both: they are read again when they are renewed."""
    said = settings.gateway.tls
    if said.certificate is None or said.key_file is None:
        return None
    files = TlsFiles(Path(settings.path(said.certificate, node)), Path(settings.path(said.key_file, node)))
    given = credential(TLS_CERTIFICATE), credential(TLS_KEY)
    if all(os.access(path, os.R_OK) for path in (files.certificate, files.key)):
        return files
    return TlsFiles(given[0], given[1]) if given[0] and given[1] else files


def _lanes(settings: Settings) -> Lanes:
    said = settings.gateway.admission
    running = said.running_requests or settings.engine.memory.max_running_requests
    return Lanes(
        running=running,
        reserved=min(said.short_reserved, running - 1),
        reading_long=said.long_prefills,
        short_tokens=said.short_tokens,
        waiting=said.queue_requests,
    )
