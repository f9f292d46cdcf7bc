"""LaunchPlan: argv and environment of one rank. The only writer of SGLANG_*, NCCL_* and GLOO_* variables. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..fabric.facts import NodeFacts
from ..settings import Device, EngineKind, Settings
from .container import ContainerPlan, container_plan, podman_argv
from .launch import launch_fingerprint
from .nccl import nccl_environment

PLAN_FORMAT = 1
PLAN = "plan.json"
"""In a rank's report directory while it runs."""
SCRIPTED_ENGINE = "scripted_engine.py"


@dataclass(frozen=True, slots=True)
class Boot:
    """One boot of the fleet: its lease, and where its ranks meet. Every boot has another port."""

    id: str
    generation: int
    rendezvous_port: int

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "generation": self.generation, "rendezvous_port": self.rendezvous_port}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Boot:
        return cls(str(raw["id"]), int(raw["generation"]), int(raw["rendezvous_port"]))


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How one rank is started. `document` is what the adapters read (see `rank_document`)."""

    rank: int
    argv: tuple[str, ...]
    environment: dict[str, str]
    document_path: Path
    document: dict[str, Any]
    container: ContainerPlan | None = None
    """With it, `argv` is podman's, and `environment` the engine's inside."""

    def to_json(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "argv": list(self.argv),
            "environment": self.environment,
            "document_path": str(self.document_path),
            "document": self.document,
            "container": self.container.to_json() if self.container is not None else None,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> LaunchPlan:
        return cls(
            raw["rank"], tuple(raw["argv"]), dict(raw["environment"]), Path(raw["document_path"]), raw["document"],
            ContainerPlan.from_json(raw["container"]) if raw.get("container") is not None else None,
        )  # fmt: skip


def report_dir(settings: Settings, node: str) -> Path:
    """Where the engine's processes of this node write what is armed."""
    return settings.run_dir(node) / f"rank-{settings.fleet.nodes[node].rank}"


def launch_plan(settings: Settings, node: str, boot: Boot, facts: NodeFacts | None = None) -> LaunchPlan:
    """The plan for this node's rank in this boot. `facts` are read for this launch; without them no rail may have an
    RDMA device. Raises Refused when an HCA has no GID for its rail.
    """
    rank = settings.fleet.nodes[node].rank
    directory = report_dir(settings, node)
    document_path = directory / PLAN
    argv = _argv(settings, node, boot)
    container = container_plan(settings, node, boot)
    if container is not None:
        argv = podman_argv(settings, node, boot, container, document_path, argv)
    return LaunchPlan(
        rank=rank,
        argv=tuple(argv),
        environment=_environment(settings, node, document_path, facts),
        document_path=document_path,
        document=rank_document(settings, node, boot),
        container=container,
    )


def rank_document(settings: Settings, node: str, boot: Boot) -> dict[str, Any]:
    """What the adapters of a rank are told: the one file that the engine's processes read from us."""
    asked = settings.adapters_asked
    rows = {
        "directory": str(settings.rows_dir(node)),
        "partition": str(settings.pack.partition),
        "revision": settings.checkpoint.revision,
        "cache_bytes": settings.pack.cache_bytes,
        "ways": settings.pack.ways,
        "engine": str(settings.pack.engine),
    }
    return {
        "format": PLAN_FORMAT,
        "node": node,
        "rank": settings.fleet.nodes[node].rank,
        "world_size": settings.fleet.world_size,
        "boot": boot.id,
        "report_dir": str(report_dir(settings, node)),
        "adapters": asked,
        "rows": rows if asked else None,
        "checkpoint": {"path": str(settings.checkpoint_dir(node)), "revision": settings.checkpoint.revision},
        "launch": launch_fingerprint(_argv(settings, node, boot), settings.engine.environment, asked),
    }


def _argv(settings: Settings, node: str, boot: Boot) -> list[str]:
    engine, fleet = settings.engine, settings.fleet
    here, head = fleet.nodes[node], fleet.nodes[fleet.head]
    python = engine.container.python if engine.container is not None else engine.python
    assert python is not None
    argv = [python]
    if engine.kind is EngineKind.SCRIPTED:
        argv += [str(Path(engine.python_path[0]) / SCRIPTED_ENGINE)]
    else:
        argv += ["-m", "sglang.launch_server"]
    argv += [
        "--model-path", str(settings.checkpoint_dir(node)),
        "--served-model-name", engine.served_model_name,
        # Loopback only: the gateway is in front of the head, and only this node's supervisor asks a worker.
        "--host", "127.0.0.1",
        "--port", str(here.engine_port),
        "--device", str(engine.device),
        "--dtype", engine.dtype,
        "--load-format", engine.load_format,
        "--tp-size", str(engine.parallelism.tp_size),
        "--ep-size", str(engine.parallelism.ep_size),
        "--nnodes", str(fleet.world_size),
        "--node-rank", str(here.rank),
        "--dist-init-addr", f"{head.management_address}:{boot.rendezvous_port}",
        "--context-length", str(engine.context_length),
        "--max-running-requests", str(engine.memory.max_running_requests),
        "--random-seed", str(engine.random_seed),
        "--watchdog-timeout", f"{engine.watchdog_timeout_s:g}",
        "--tool-call-parser", engine.tool_call_parser,
        "--reasoning-parser", engine.reasoning_parser,
        "--enable-cache-report",
        "--enable-metrics",
    ]  # fmt: skip
    for flag, value in (
        ("--mem-fraction-static", engine.memory.mem_fraction_static),
        ("--max-total-tokens", engine.memory.max_total_tokens),
        ("--chunked-prefill-size", engine.memory.chunked_prefill_size),
        ("--cuda-graph-max-bs-decode", engine.memory.cuda_graph_max_bs_decode),
        ("--attention-backend", engine.backends.attention),
        ("--moe-runner-backend", engine.backends.moe_runner),
        ("--fp8-gemm-backend", engine.backends.fp8_gemm),
        ("--sampling-backend", engine.backends.sampling),
        ("--min-free-slots-delay", engine.min_free_slots_delay),
    ):
        if value is not None:
            argv += [flag, str(value)]
    if engine.speculative is not None:
        argv += ["--speculative-algorithm", engine.speculative.algorithm]
        argv += ["--speculative-dspark-block-size", str(engine.speculative.block_size)]
        if engine.speculative.sps_table is not None:
            argv += ["--speculative-dspark-sps-table-path", str(settings.path(engine.speculative.sps_table, node))]
        if engine.speculative.block_verification:
            argv.append("--speculative-use-block-verification")
    if engine.load_threads is not None:
        argv += ["--model-loader-extra-config", json.dumps({"num_threads": engine.load_threads})]
    if engine.bounded_replay is not None:
        argv += [f"--{'' if engine.bounded_replay else 'no-'}enable-decoder-swa-bounded-replay"]
    for flag, wanted in (
        ("--trust-remote-code", engine.trust_remote_code),
        ("--disable-overlap-schedule", not engine.overlap_schedule),
        ("--enable-deepseek-v4-fp4-indexer", engine.fp4_indexer),
        ("--sleep-on-idle", engine.sleep_on_idle),
    ):
        if wanted:
            argv.append(flag)
    return argv


def _environment(settings: Settings, node: str, document_path: Path, facts: NodeFacts | None) -> dict[str, str]:
    engine, here = settings.engine, settings.fleet.nodes[node]
    environment = engine.environment | nccl_environment(settings, node, facts)
    # The broadcast between the schedulers binds to the first interface that SGLang finds (utils/network.py
    # get_local_ip_auto). A rail of a triangle reaches one worker only, and every rank would hang in the rendezvous.
    environment["SGLANG_HOST_IP"] = str(here.management_address)
    # Our plugin is always loaded and is the only one: what it did is written down and compared.
    environment["SGLANG_PLUGINS"] = "dsv41"
    # The gateway names each request, to stop it by; Messages takes a name in a header only. The engine listens on
    # loopback, and the gateway passes no header of a client's on.
    environment["SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES"] = "1"
    # How often SGLang looks whether the client of a whole answer is still there; 4 s by itself. It is the only way to
    # stop a request with n > 1, whose names SGLang tells nobody.
    environment["SGLANG_REQUEST_STATE_WAIT_TIMEOUT"] = "1"
    environment["DSV41_RANK_PLAN"] = str(document_path)
    environment["PYTHONUNBUFFERED"] = "1"
    if engine.python_path:
        environment["PYTHONPATH"] = ":".join(engine.python_path)
    if engine.external_model_package is not None:
        environment["SGLANG_EXTERNAL_MODEL_PACKAGE"] = engine.external_model_package
    if engine.omp_threads_bind is not None:
        environment["SGLANG_CPU_OMP_THREADS_BIND"] = engine.omp_threads_bind
    if engine.reasoning_effort is not None:
        environment["SGLANG_DSV41_REASONING_EFFORT"] = str(engine.reasoning_effort)
    if engine.device is Device.CPU:
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
        # A CUDA build of torch brings libnccl, and SGLang 0.5.23 then makes an NCCL communicator for device cpu and
        # fails (pynccl.py:116). Without a library to load it leaves NCCL alone, as in a CPU build.
        environment["SGLANG_NCCL_SO_PATH"] = "/dev/null"
    return environment
