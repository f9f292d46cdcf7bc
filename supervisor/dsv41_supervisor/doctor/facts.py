"""What one node's host looks like: frozen facts, read by `read_*.py`, judged by `host_checks.py`.

As the fabric's facts (`fabric/facts.py`) they travel between supervisors as JSON with every table bounded. None always
means: could not be read, and `unread` says why; or not there, where a sentence below says so. Sizes in bytes.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..fabric.facts import Facts, PathText, Text, Word

MAX_ROWS = 128
HOST_FORMAT = 1


class Memory(Facts):
    """/proc/meminfo. `cma_free` above `cma_total` is the kernel's own sign of users.md F19."""

    total: int
    free: int
    available: int
    cached: int = 0
    swap_total: int = 0
    swap_free: int = 0
    cma_total: int | None = None
    cma_free: int | None = None


class Process(Facts):
    """One process that matters here, and why: which device it holds, which port it listens on."""

    pid: int
    name: Word
    why: Text


class GpuDriver(Facts):
    """/proc/driver/nvidia/version; `open_module` is None when the file says neither."""

    version: Word
    open_module: bool | None = None


class Gpu(Facts):
    """One GPU as nvidia-smi sees it now; None where it says N/A. Clocks in MHz."""

    name: Word
    sm_mhz: float | None = None
    max_sm_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    thermal_slowdown: bool | None = None


class Disk(Facts):
    """The file system under one directory; `purpose` is state, rows or checkpoint."""

    purpose: Word
    path: PathText
    mount_point: PathText
    filesystem: Word
    source: PathText
    free: int
    total: int


class Checkpoint(Facts):
    """What `share.check_checkpoint` found on this node."""

    path: PathText
    n_files: int
    n_bytes: int
    problems: Annotated[tuple[Text, ...], Field(max_length=MAX_ROWS)] = ()


class Rows(Facts):
    """What `pack.check_rows` found: files that are good, and what is wrong with the others.

    `bytes_to_pack`: what packing them takes on disk; None when that cannot be told.
    """

    good: Annotated[tuple[PathText, ...], Field(max_length=MAX_ROWS)] = ()
    to_pack: Annotated[tuple[Text, ...], Field(max_length=MAX_ROWS)] = ()
    problems: Annotated[tuple[Text, ...], Field(max_length=MAX_ROWS)] = ()
    bytes_to_pack: int | None = None


class Port(Facts):
    """A port that this node needs. `holder` listens there now; None: free. `ours`: by a process of this fleet."""

    purpose: Word
    port: int
    holder: Process | None = None
    ours: bool = False


class GatewayAnswer(Facts):
    """What the gateway answered on /health. `problem`: nothing, and why. `ours`: as our gateway does, good or not."""

    where: Text
    status: int | None = None
    ours: bool = False
    problem: Text | None = None


class ContainerFacts(Facts):
    """What a rank in a container needs. `problem`: podman could not be asked, and why; the others are None then."""

    problem: Text | None = None
    version: Word | None = None
    image: bool | None = None
    """Whether the image is there, by its digest."""
    devices: Annotated[tuple[Text, ...], Field(max_length=MAX_ROWS)] | None = None
    """CDI devices by qualified name; None where no GPU is needed."""
    unread_specs: Annotated[tuple[Text, ...], Field(max_length=8)] = ()
    missing: Annotated[tuple[PathText, ...], Field(max_length=MAX_ROWS)] = ()
    """Paths that the container is to be given and that are not there."""
    left: Annotated[tuple[Text, ...], Field(max_length=MAX_ROWS)] = ()
    """Containers of this node whose rank is gone."""


class Kernel(Facts):
    """Release, command line and the sysctls that are looked at, by dotted name."""

    release: Word
    command_line: Annotated[str, Field(max_length=4096)] = ""
    sysctls: Annotated[dict[Word, Word], Field(max_length=64)] = Field(default_factory=dict)
    cppc_autonomous: bool | None = None
    """None where the processor has no such switch."""


class HostFacts(Facts):
    """One node's host, read at one time. `gpu_driver` None: there is no NVIDIA driver."""

    format: int = HOST_FORMAT
    node: Word
    supervised: bool
    """A supervisor read this; otherwise `dsv41 doctor` did by itself."""
    rank_state: Word
    """State of the node's rank, or unknown."""
    at_s: float
    """The node's clock, in seconds since the epoch."""
    same: Annotated[dict[Word, Text], Field(max_length=64)] = Field(default_factory=dict)
    """What must be equal on every node."""
    fabric_changes: Annotated[tuple[Text, ...], Field(max_length=MAX_ROWS)] = ()
    """What is not as it was when the running rank was launched."""
    memory: Memory | None = None
    kernel: Kernel | None = None
    killers: Annotated[tuple[Process, ...], Field(max_length=MAX_ROWS)] | None = None
    gpu_driver: GpuDriver | None = None
    gpus: Annotated[tuple[Gpu, ...], Field(max_length=16)] | None = None
    gpu_users: Annotated[tuple[Process, ...], Field(max_length=MAX_ROWS)] | None = None
    disks: Annotated[tuple[Disk, ...], Field(max_length=16)] | None = None
    checkpoint: Checkpoint | None = None
    rows: Rows | None = None
    ports: Annotated[tuple[Port, ...], Field(max_length=MAX_ROWS)] | None = None
    gateway: GatewayAnswer | None = None
    """None where the settings put no gateway."""
    container: ContainerFacts | None = None
    """None where the engine runs by its own Python."""
    unread: Annotated[dict[Word, Text], Field(max_length=64)] = Field(default_factory=dict)
    took_s: Annotated[dict[Word, float], Field(max_length=64)] = Field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """The node's rank is there, or nobody can say that it is not."""
        return self.rank_state not in ("absent", "stopped", "failed")
