"""Settings of stages 3, 4 and 7, and of the supervisor's own work: share, pack, gateway, guard, recovery, alerts."""

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
    period_s: Annotated[float, Field(ge=0.1, le=60)] = Field(default=1.0, description="Seconds between two looks.")


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


class Alerts(Model):
    command: tuple[str, ...] | None = Field(
        default=None, description="Program with arguments to run on an alert; the text comes on standard input."
    )


class UnitBackend(StrEnum):
    """`systemd`: units, over the system bus. `process`: child processes, for the demo and machines without systemd."""

    SYSTEMD = "systemd"
    PROCESS = "process"


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


__all__ = [
    "Alerts",
    "Checkpoint",
    "Gateway",
    "Guard",
    "Name",
    "Pack",
    "PartitionName",
    "ReadEngine",
    "Recovery",
    "Share",
    "ShareMode",
    "Supervisor",
    "UnitBackend",
]


class Checks(Model):
    override: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,63}$")], ...] = Field(
        default=(),
        description="Ids of checks whose refusal does not stop a boot; each use is logged and shown in status. "
        "What such a check refuses has cost others hours: dsv41 doctor --list says why.",
    )
