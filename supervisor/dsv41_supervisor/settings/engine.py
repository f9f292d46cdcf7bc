"""Settings of stages 5 and 6: everything SGLang is told, typed. `rank/plan.py` turns it into argv and environment."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from .base import AbsolutePath, Model, Port, PositiveSeconds
from .container import Container
from .variables import misread


class EngineKind(StrEnum):
    """`sglang` is the real engine. `scripted` is the test double: it starts, answers, hangs and dies as told."""

    SGLANG = "sglang"
    SCRIPTED = "scripted"


class Device(StrEnum):
    CUDA = "cuda"
    CPU = "cpu"


class Parallelism(Model):
    tp_size: Annotated[int, Field(ge=1, le=64)] = Field(
        description="Tensor-parallel degree. One GPU a node: equals the number of nodes."
    )
    ep_size: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="Expert-parallel degree; divides tp_size."
    )

    @model_validator(mode="after")
    def _divides(self) -> Parallelism:
        if self.tp_size % self.ep_size:
            raise ValueError(f"engine.parallelism.ep_size {self.ep_size} does not divide tp_size {self.tp_size}")
        return self


class Memory(Model):
    mem_fraction_static: Annotated[float, Field(gt=0, le=0.95)] | None = Field(
        default=0.80,
        description="Share of memory for weights and KV pool. 0.80 keeps about 24 GiB a rank outside the static "
        "pool for the prefill transient at TP4; above 0.84 a Spark starts to swap.",
    )
    max_total_tokens: Annotated[int, Field(ge=256)] | None = Field(
        default=None,
        description="KV pin in tokens. null takes what is left after weights, which moves between boots.",
    )
    min_granted_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.98,
        description="A boot is refused when SGLang grants less than this share of max_total_tokens; guess, "
        "never measured. It clamps the pin without saying so when the page cache or another process holds memory.",
    )
    chunked_prefill_size: Annotated[int, Field(ge=64)] | None = Field(
        default=None, description="Prefill chunk in tokens; the indexer's transient grows with it."
    )
    max_running_requests: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=16, description="Requests decoded together."
    )
    cuda_graph_max_bs_decode: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Largest batch with a captured decode graph; null leaves it to SGLang."
    )


class Speculative(Model):
    algorithm: Literal["DSPARK"] = Field(default="DSPARK", description="The only one V4.1 supports.")
    block_size: Annotated[int, Field(ge=1, le=16)] = Field(
        default=5, description="Draft tokens a step; the checkpoint's own value is 5."
    )
    sps_table: AbsolutePath | None = Field(
        default=None,
        description="--speculative-dspark-sps-table-path: measured steps per second by batch. Its bytes must be equal "
        "on all ranks; with different ones the ranks verify different drafts and hang in a collective.",
    )
    block_verification: bool = Field(
        default=False,
        description="--speculative-use-block-verification: judge a sampled block of drafts as a whole, which accepts "
        "more of them. Not measured on a Spark; greedy requests are not affected.",
    )


class Backends(Model):
    attention: str | None = Field(default=None, description="--attention-backend; V4.1 on CUDA uses dsv4.")
    moe_runner: str | None = Field(default=None, description="--moe-runner-backend.")
    fp8_gemm: str | None = Field(default=None, description="--fp8-gemm-backend.")
    sampling: str | None = Field(default=None, description="--sampling-backend.")


PLANNED_VARIABLES = {
    "NCCL_IB_GID_INDEX": "it is looked up on every node at every launch",
    "NCCL_IB_ROCE_VERSION_NUM": "it belongs to the GID lookup",
    "NCCL_IB_ADDR_FAMILY": "it belongs to the GID lookup",
    "NCCL_IB_ADDR_RANGE": "it belongs to the GID lookup",
    "NCCL_SOCKET_IFNAME": "it is each node's fleet.nodes.<name>.management_interface",
    "GLOO_SOCKET_IFNAME": "it is each node's fleet.nodes.<name>.management_interface",
    "NCCL_NET": "IB wherever rails have RDMA devices, so that NCCL never falls back to TCP",
    "NCCL_NET_PLUGIN": "the planned transport is the built-in one",
    "NCCL_NVLS_ENABLE": "always 0: a Spark has no NVLink switch, and a stray NVLS path hangs",
    "NCCL_NET_GDR_LEVEL": "always 0: a GB10 has no GPUDirect RDMA",
    "NCCL_IB_SUBNET_AWARE_ROUTING": "it follows from fleet.topology",
    "NCCL_IB_SUBNET_PREFIX_LEN": "it follows from the rails' addresses",
    "NCCL_IB_MERGE_NICS": "it follows from fleet.topology",
    "NCCL_CROSS_NIC": "it follows from fleet.topology",
    "NCCL_ALGO": "it follows from fleet.topology",
    "NCCL_SWITCHLESS_RING_ONLY": "it follows from fleet.topology",
    "NCCL_BUFFSIZE": "use engine.nccl.buffer_bytes",
    "NCCL_PROTO": "use engine.nccl.protocol",
    "NCCL_MIN_NCHANNELS": "use engine.nccl.min_channels",
    "NCCL_MAX_NCHANNELS": "use engine.nccl.max_channels",
    "NCCL_IB_TC": "use engine.nccl.traffic_class",
    "SGLANG_NCCL_SO_PATH": "use engine.nccl.library",
    "SGLANG_DSV41_REASONING_EFFORT": "use engine.reasoning_effort",
    "SGLANG_HOST_IP": "it is each node's fleet.nodes.<name>.management_address",
    "SGLANG_PLUGINS": "ours is the only plugin",
    "SGLANG_REQUEST_STATE_WAIT_TIMEOUT": "it bounds for how long the engine works for a client that left",
    "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES": "the gateway names requests by it, and passes no client's header on",
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "use engine.external_model_package",
    "SGLANG_CPU_OMP_THREADS_BIND": "use engine.omp_threads_bind",
    "SGLANG_USE_CPU_ENGINE": "it follows from engine.device",
}
"""Variables that rank/plan.py writes, and why nobody else may."""


class Nccl(Model):
    library: AbsolutePath | None = Field(
        default=None,
        description="libnccl.so.2 that every rank loads; null takes the one torch brings. A ring needs a patched one.",
    )
    buffer_bytes: Annotated[int, Field(ge=65536, le=67108864)] | None = Field(
        default=None,
        description="NCCL_BUFFSIZE. Buffers are pinned host memory, which is GPU memory here: 4.7 GiB a node with "
        "NCCL's own sizes, 139 MB with 1 MiB.",
    )
    protocol: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9^,]{1,40}$")] | None = Field(
        default=None, description="NCCL_PROTO, such as ^LL128."
    )
    min_channels: Annotated[int, Field(ge=1, le=64)] | None = Field(default=None, description="NCCL_MIN_NCHANNELS.")
    max_channels: Annotated[int, Field(ge=1, le=64)] | None = Field(default=None, description="NCCL_MAX_NCHANNELS.")
    traffic_class: Annotated[int, Field(ge=0, le=255)] | None = Field(
        default=None,
        description="NCCL_IB_TC behind a switch: its upper six bits are the DSCP whose class the switch pauses. "
        "A class without pause loses packets, and RoCE slows to a crawl.",
    )

    @model_validator(mode="after")
    def _channels(self) -> Nccl:
        if self.min_channels is not None and self.max_channels is not None and self.min_channels > self.max_channels:
            raise ValueError(
                f"engine.nccl.min_channels {self.min_channels} is above engine.nccl.max_channels {self.max_channels}"
            )
        return self


class Rendezvous(Model):
    """Where the ranks of one boot meet. A new boot takes another port, so it can never join an old one."""

    first_port: Port = Field(default=20000, description="First port of the range.")
    n_ports: Annotated[int, Field(ge=2, le=1000)] = Field(default=64, description="Ports in the range.")


class StallTimers(Model):
    """Longest time without progress in each phase of loading; progress starts the timer again.

    Phases are read from the engine's own log. There is no wall-clock limit on a whole boot.
    """

    starting_s: PositiveSeconds = Field(default=180, description="From start to the first line about the model.")
    rendezvous_s: PositiveSeconds = Field(
        default=600, description="Ranks meeting; a worker waits here from its start until the head has come."
    )
    weights_s: PositiveSeconds = Field(default=900, description="Between two signs of weight loading.")
    pools_s: PositiveSeconds = Field(default=300, description="KV pool and draft model.")
    capture_s: PositiveSeconds = Field(
        default=900, description="CUDA graphs; a first boot after a change compiles kernels here."
    )
    warmup_s: PositiveSeconds = Field(default=300, description="From listening to the first real token.")
    serving_s: PositiveSeconds = Field(
        default=60, description="Requests running and no token moved for this long is a failure."
    )


class Engine(Model):
    kind: EngineKind = Field(default=EngineKind.SGLANG, description="Which engine the ranks run.")
    profile: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,31}$")] | None = Field(
        default=None, description="Name of the measured set of settings this is based on; shown in status."
    )
    python: AbsolutePath | None = Field(
        default=None,
        description="Python of the environment that holds SGLang and the adapters; null with engine.container.",
    )
    container: Container | None = Field(
        default=None,
        description="Run the engine from an image by podman instead of engine.python; for DGX OS. Not run on GB10.",
    )
    python_path: tuple[AbsolutePath, ...] = Field(
        default=(), description="Directories put on PYTHONPATH of the engine; empty on a real fleet."
    )
    external_model_package: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")] | None = Field(
        default=None, description="SGLANG_EXTERNAL_MODEL_PACKAGE; the demo's tiny model. null on a real fleet."
    )
    device: Device = Field(default=Device.CUDA, description="cpu is for the demo and the tests.")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(default="auto", description="--dtype.")
    served_model_name: Annotated[str, StringConstraints(min_length=1, max_length=128)] = Field(
        default="deepseek-v4.1-flash", description="Name clients ask for."
    )
    context_length: Annotated[int, Field(ge=256, le=1048576)] = Field(
        default=262144, description="Longest prompt with answer, in tokens."
    )
    parallelism: Parallelism = Field(description="How the model is split over the ranks.")
    memory: Memory = Field(default_factory=Memory, description="Where memory goes.")
    speculative: Speculative | None = Field(default=None, description="Speculative decoding; null turns it off.")
    backends: Backends = Field(default_factory=Backends, description="Kernels, by SGLang's names.")
    load_format: Literal["auto", "safetensors", "dummy"] = Field(default="safetensors", description="--load-format.")
    trust_remote_code: bool = Field(default=False, description="--trust-remote-code.")
    overlap_schedule: bool = Field(default=True, description="false passes --disable-overlap-schedule.")
    bounded_replay: bool | None = Field(
        default=None, description="--enable-decoder-swa-bounded-replay; null leaves SGLang's default."
    )
    fp4_indexer: bool = Field(default=False, description="--enable-deepseek-v4-fp4-indexer (SM100/SM120/SM121 only).")
    tool_call_parser: str = Field(default="deepseekv41", description="Also selects the V4.1 chat encoding.")
    reasoning_parser: str = Field(default="deepseek-v41", description="--reasoning-parser.")
    reasoning_effort: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None,
        description="SGLANG_DSV41_REASONING_EFFORT: budget of a thinking request that names none. null is the "
        "encoding's own default, 75; more thinks longer and answers later.",
    )
    random_seed: int = Field(default=0, ge=0, description="--random-seed; equal on all ranks.")
    watchdog_timeout_s: PositiveSeconds = Field(default=1800, description="SGLang's own watchdog.")
    min_free_slots_delay: Annotated[int, Field(ge=0, le=64)] | None = Field(
        default=1,
        description="1 lets the batch reach max_running_requests; SGLang's own default holds prefills back.",
    )
    sleep_on_idle: bool = Field(default=True, description="--sleep-on-idle.")
    load_threads: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="Threads reading the checkpoint; 1 keeps a Spark's memory flat while loading."
    )
    omp_threads_bind: str | None = Field(
        default=None, description="SGLANG_CPU_OMP_THREADS_BIND, one entry a rank; for device cpu."
    )
    environment: dict[Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")], str] = Field(
        default_factory=dict,
        description="More environment variables. Those starting with SGLANG_ must exist in the pinned SGLang, with "
        "values that it can read; those that the launch plan writes are refused. NCCL_IB_HCA may narrow the HCAs of "
        "the rails.",
    )
    nccl: Nccl = Field(default_factory=Nccl, description="Collectives: library, buffers, protocol, traffic class.")
    rendezvous: Rendezvous = Field(default_factory=Rendezvous, description="Where the ranks of one boot meet.")
    stall: StallTimers = Field(default_factory=StallTimers, description="Longest time without progress, by phase.")

    @model_validator(mode="after")
    def _scripted_is_small(self) -> Engine:
        if self.kind is EngineKind.SCRIPTED and self.device is Device.CUDA:
            raise ValueError("engine.kind scripted needs engine.device cpu")
        return self

    @model_validator(mode="after")
    def _one_backend(self) -> Engine:
        if self.python is None and self.container is None:
            raise ValueError(
                "engine.python is missing; name the Python of the engine's environment, or an image in "
                "engine.container.image"
            )
        if self.python is not None and self.container is not None:
            raise ValueError(
                "engine.python and engine.container are both set, and a rank runs one of them; take one out"
            )
        return self

    @model_validator(mode="after")
    def _environment_is_not_planned(self) -> Engine:
        problems = [
            f"engine.environment.{name} is written by the launch plan: {PLANNED_VARIABLES[name]}"
            for name in sorted(set(self.environment) & set(PLANNED_VARIABLES))
        ]
        problems += misread({n: v for n, v in self.environment.items() if n not in PLANNED_VARIABLES})
        if "NCCL_IB_HCA" in self.environment:
            from ..rank.hca import parse_hca

            try:
                parse_hca(self.environment["NCCL_IB_HCA"])
            except ValueError as error:
                problems.append(f"engine.environment.NCCL_IB_HCA: {error}")
        if problems:
            raise ValueError("; ".join(problems))
        return self
