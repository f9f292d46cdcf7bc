"""Settings of stages 3, 4 and 7, and of the supervisor's own work: share, pack, gateway, guard, recovery, alerts,
incidents."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Address
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from .base import AbsolutePath, Model, Name, Port, PositiveSeconds


class Checkpoint(Model):
    path: AbsolutePath = Field(description="Directory of the checkpoint, as each node sees it.")
    repo: str = Field(default="deepseek-ai/DeepSeek-V4.1-Flash", description="Where it comes from.")
    revision: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{7,64}$")] = Field(
        description="Pinned revision; the packed rows carry it and every rank must agree."
    )
    manifest: AbsolutePath | None = Field(
        default=None, description="JSON file with name, bytes and sha256 of every checkpoint file; null: sizes only."
    )


class ShareMode(StrEnum):
    """`local`: every node has the checkpoint on its own disk. `nfs`: the head exports it read-only."""

    LOCAL = "local"
    NFS = "nfs"


class Share(Model):
    mode: ShareMode = Field(default=ShareMode.LOCAL, description="Where the ranks read the checkpoint from.")


class PartitionName(StrEnum):
    """`balanced` deals the heads round-robin. `contiguous` gives one rank of three all four-grams: 1.6x the reads."""

    BALANCED = "balanced"
    CONTIGUOUS = "contiguous"


class ReadEngine(StrEnum):
    """How the row store reads; `auto` takes the first that works and says which."""

    AUTO = "auto"
    URING = "uring"
    AIO = "aio"
    THREADS = "threads"


class Pack(Model):
    directory: AbsolutePath = Field(
        default="/var/lib/dsv41/rows", description="Local NVMe directory of this rank's packed rows."
    )
    partition: PartitionName = Field(default=PartitionName.BALANCED, description="Which rank owns which rows.")
    cache_bytes: Annotated[int, Field(ge=1 << 20)] = Field(
        default=4 << 30,
        description="Row cache a rank, in bytes. 4 GiB: 0.333 reads a lookup on real text; 1 GiB: 0.406.",
    )
    ways: Annotated[int, Field(ge=1, le=16)] = Field(default=16, description="Associativity of the cache.")
    engine: ReadEngine = Field(default=ReadEngine.AUTO, description="How rows are read from the drive.")


class Admission(Model):
    running_requests: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        description="Requests at the engine at once; others wait in the gateway. "
        "null: engine.memory.max_running_requests.",
    )
    short_reserved: Annotated[int, Field(ge=0, le=1023)] = Field(
        default=1, description="Of these, places that only short prompts take: they do not wait behind long ones."
    )
    long_prefills: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1,
        description="Long prompts that the engine reads at once; it reads one after the other, and a short one sent "
        "after them would wait for all.",
    )
    short_tokens: Annotated[int, Field(ge=1, le=1048576)] = Field(
        default=4096, description="A prompt up to this is short, at four bytes of the request a token."
    )
    queue_requests: Annotated[int, Field(ge=0, le=65536)] = Field(
        default=256, description="Most requests that wait; one more is answered 503."
    )
    queue_s: Annotated[float, Field(gt=0, le=86400)] = Field(
        default=300, description="Seconds a request waits for its turn before it is answered 503."
    )

    @model_validator(mode="after")
    def _long_ones_have_a_place(self) -> Admission:
        if self.running_requests is not None and self.short_reserved >= self.running_requests:
            raise ValueError(
                f"gateway.admission.short_reserved {self.short_reserved} is not below "
                f"gateway.admission.running_requests {self.running_requests}: no long prompt would ever run"
            )
        return self


class Tls(Model):
    certificate: AbsolutePath | None = Field(
        default=None, description="PEM file of the certificate with its chain; read again when renewed. null: no TLS."
    )
    key_file: AbsolutePath | None = Field(
        default=None, description="PEM file of its private key, without a passphrase; not readable by every user."
    )

    @model_validator(mode="after")
    def _both_or_none(self) -> Tls:
        if (self.certificate is None) != (self.key_file is None):
            named, missing = ("certificate", "key_file") if self.key_file is None else ("key_file", "certificate")
            raise ValueError(f"gateway.tls.{named} is set and gateway.tls.{missing} is not: TLS needs both")
        return self


class Gateway(Model):
    address: IPv4Address = Field(
        default=IPv4Address("127.0.0.1"),
        description="Address the OpenAI endpoint listens on. Loopback unless you name another.",
    )
    port: Port = Field(default=8888, description="Port of the OpenAI endpoint.")
    keys_file: AbsolutePath = Field(
        default="/etc/dsv41/api-keys", description="One `name:key` a line; reloaded when it changes."
    )
    require_key: bool = Field(default=True, description="false lets anyone who reaches the address in.")
    max_tokens_cap: Annotated[int, Field(ge=0, le=1048576)] = Field(
        default=32768,
        description="Completion tokens filled in when a request names none, and its upper limit; 0 = off.",
    )
    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = Field(
        default=64 << 20, description="Largest request body."
    )
    tls: Tls = Field(default_factory=Tls, description="HTTPS instead of HTTP, TLS 1.2 or newer.")
    admission: Admission = Field(default_factory=Admission, description="Who goes to the engine next, and who waits.")
    hold_s: Annotated[float, Field(ge=0, le=86400)] = Field(
        default=0,
        description="Seconds a new request is held while the fleet recovers, instead of a 503 at once; 0 = off. "
        "Proxies in between must wait as long.",
    )
    hold_requests: Annotated[int, Field(ge=1, le=65536)] = Field(
        default=64, description="Most requests held over a recovery."
    )

    @property
    def url(self) -> str:
        """How a program on the head reaches it."""
        scheme = "http" if self.tls.certificate is None else "https"
        address = "127.0.0.1" if self.address.is_unspecified else self.address
        return f"{scheme}://{address}:{self.port}"

    @model_validator(mode="after")
    def _open_only_on_loopback(self) -> Gateway:
        if not self.require_key and not self.address.is_loopback:
            raise ValueError(
                f"gateway.require_key is false and gateway.address is {self.address}: "
                "without keys the gateway listens on loopback only"
            )
        return self


class Guard(Model):
    floor_bytes: Annotated[int, Field(ge=0)] = Field(
        default=4 << 30, description="A rank is killed when MemAvailable falls below this; a GB10 out of memory hangs."
    )
    warn_bytes: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="An alert goes out when MemAvailable falls below this; null: a quarter above the floor.",
    )
    period_s: Annotated[float, Field(ge=0.1, le=60)] = Field(
        default=1.0, description="Seconds between two looks; near the floor the guard looks up to fifty times a second."
    )
    cgroup_dir: AbsolutePath | None = Field(
        default=None,
        description="Directory of a memory cgroup whose limit counts too, for a node inside a container; "
        "null: the machine's MemAvailable alone.",
    )

    @property
    def warn_at_bytes(self) -> int:
        """Where the warning starts."""
        return self.warn_bytes if self.warn_bytes is not None else self.floor_bytes + self.floor_bytes // 4

    @model_validator(mode="after")
    def _warns_first(self) -> Guard:
        if self.warn_bytes is not None and self.warn_bytes < self.floor_bytes:
            raise ValueError(
                f"guard.warn_bytes {self.warn_bytes} is below guard.floor_bytes {self.floor_bytes}: "
                "the rank would be killed before anyone is warned"
            )
        return self


class Recovery(Model):
    max_recoveries: Annotated[int, Field(ge=0, le=100)] = Field(
        default=3, description="Recoveries within the window; after that the fleet stays down and an alert goes out."
    )
    window_s: PositiveSeconds = Field(default=3600, description="Length of the window.")
    backoff_s: Annotated[float, Field(ge=0, le=600)] = Field(
        default=5, description="Pause before the first restart; doubles with each recovery in the window."
    )
    stop_timeout_s: PositiveSeconds = Field(
        default=30, description="From a polite stop of a rank to killing everything it started."
    )


class AlertKind(StrEnum):
    """What can be told. The head tells all but `head-silent`, which a worker does when it has lost the head."""

    LOST = "lost"
    RECOVERED = "recovered"
    GAVE_UP = "gave-up"
    BOOT_FAILED = "boot-failed"
    PAUSED = "paused"
    RESUMED = "resumed"
    HEAD_SILENT = "head-silent"
    MEMORY_KILL = "memory-kill"
    MEMORY_LOW = "memory-low"
    MEMORY_PRESSURE = "memory-pressure"
    GPU_NO_MEMORY = "gpu-no-memory"
    KERNEL_OOM_KILL = "kernel-oom-kill"
    GUARD_MISSING = "guard-missing"
    FABRIC_DEGRADED = "fabric-degraded"
    FABRIC_RESTORED = "fabric-restored"


class Alerts(Model):
    command: tuple[str, ...] | None = Field(
        default=None,
        description="Program with arguments to run on an alert; the event comes as one JSON object on standard input.",
    )
    webhook_url_file: AbsolutePath | None = Field(
        default=None,
        description="File with the one URL that events are POSTed to as JSON; a file, because such URLs hold secrets.",
    )
    timeout_s: Annotated[float, Field(gt=0, le=300)] = Field(
        default=15, description="Longest time for one run of the command, and for one try of the webhook."
    )
    tries: Annotated[int, Field(ge=1, le=10)] = Field(
        default=4, description="Tries of the webhook; the pause between two starts at 1 s and doubles."
    )
    repeat_s: Annotated[float, Field(ge=0, le=604800)] = Field(
        default=900, description="The same event about the same node is not told again for this long; 0 tells all."
    )
    muted: tuple[AlertKind, ...] = Field(default=(), description="Events that are not told.")


class Incidents(Model):
    max_bytes: Annotated[int, Field(ge=65536, le=1 << 30)] = Field(
        default=16 << 20, description="Largest bundle, before it is compressed; parts are cut to fit, and say so."
    )
    max_bundles: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=30, description="Bundles kept in the state directory; the oldest go first."
    )
    log_lines: Annotated[int, Field(ge=10, le=2000)] = Field(
        default=1000, description="Last lines of each rank in a bundle."
    )


class UnitBackend(StrEnum):
    """`systemd`: units, over the system bus. `process`: child processes, for the demo and machines without systemd."""

    SYSTEMD = "systemd"
    PROCESS = "process"


class Tolerable(StrEnum):
    """What a fleet can be run with while it is being updated node by node; nobody has measured such a mixture."""

    KERNEL = "kernel"
    DRIVER = "driver"


class Supervisor(Model):
    units: UnitBackend = Field(default=UnitBackend.SYSTEMD, description="How ranks and packing are started.")
    state_dir: AbsolutePath = Field(default="/var/lib/dsv41/supervisor", description="State kept over restarts.")
    run_dir: AbsolutePath = Field(default="/run/dsv41", description="Reports, plans and logs of this boot.")
    peer_timeout_s: PositiveSeconds = Field(default=3, description="A peer that does not answer for this long is lost.")
    lease_ttl_s: PositiveSeconds = Field(
        default=20, description="A rank whose lease was not renewed for this long stops itself."
    )
    canary_period_s: PositiveSeconds = Field(
        default=30, description="Seconds between two one-token requests while nothing else runs."
    )
    canary_timeout_s: PositiveSeconds = Field(default=30, description="Longest wait for the canary's token.")
    tolerated_differences: tuple[Tolerable, ...] = Field(
        default=(),
        description="What may differ between nodes all the same. A difference is shown in status; "
        "everything else that ranks must have in common is refused in any case.",
    )


__all__ = [
    "AlertKind",
    "Alerts",
    "Checkpoint",
    "Gateway",
    "Guard",
    "Incidents",
    "Name",
    "Pack",
    "PartitionName",
    "ReadEngine",
    "Recovery",
    "Share",
    "ShareMode",
    "Supervisor",
    "Tolerable",
    "UnitBackend",
]


class Checks(Model):
    override: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,63}$")], ...] = Field(
        default=(),
        description="Ids of checks whose refusal does not stop a boot; each use is logged and shown in status. "
        "What such a check refuses has cost others hours: dsv41 doctor --list says why.",
    )
