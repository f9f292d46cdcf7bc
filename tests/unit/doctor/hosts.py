"""Host facts of a healthy fleet of three, to be damaged by one value each."""

from __future__ import annotations

import json
from typing import Any

from dsv41_supervisor.checks import HOST, Finding, Severity, run
from dsv41_supervisor.doctor.facts import (
    Checkpoint,
    Disk,
    Gpu,
    GpuDriver,
    HostFacts,
    Kernel,
    Memory,
    Port,
    Rows,
)
from dsv41_supervisor.settings import Settings, parse

from tests.unit.fleets import good

GIB = 1 << 30
TOTAL = 121 * GIB


def settings(*, cuda: bool = True, **changes: Any) -> Settings:
    """A triangle; on CUDA with RDMA devices. `changes` by dotted path, with __ for the dot."""
    document = good()
    if cuda:
        document["engine"]["device"] = "cuda"
        document["adapters"] = {"tp_pad": {}}
        for node in document["fleet"]["nodes"].values():
            for number, rail in enumerate(node["rails"].values()):
                rail["rdma_device"] = f"rocep1s0f{number}"
    for path, value in changes.items():
        *parents, last = path.split("__")
        at = document
        for name in parents:
            at = at.setdefault(name, {})
        at[last] = value
    return parse(json.dumps(document))


def host(node: str, **changes: Any) -> HostFacts:
    """A good Spark before a start."""
    path = "/models/demo"
    facts = HostFacts(
        node=node, supervised=True, rank_state="absent", at_s=1.0,
        same={"settings hash": "a" * 64, "kernel": "6.17.0-1031-nvidia"},
        memory=Memory(total=TOTAL, free=110 * GIB, available=116 * GIB, cached=5 * GIB),
        kernel=Kernel(release="6.17.0-1031-nvidia", command_line="kho=off", sysctls={"vm.max_map_count": "65530"}),
        killers=(),
        gpu_driver=GpuDriver(version="580.173.02", open_module=True),
        gpus=(Gpu(name="NVIDIA GB10", sm_mhz=2411, power_w=14, temperature_c=56, thermal_slowdown=False),),
        gpu_users=(),
        disks=(
            disk("state", "/var/lib/dsv41/supervisor"),
            disk("rows", "/var/lib/dsv41/rows"),
            disk("checkpoint", path),
        ),
        checkpoint=Checkpoint(path=path, n_files=48, n_bytes=500 * GIB),
        rows=Rows(good=("/var/lib/dsv41/rows/engram-l1-r0of3.bin",), bytes_to_pack=0),
        ports=(Port(purpose="engine", port=30000), Port(purpose="supervisor", port=7141)),
    )  # fmt: skip
    return facts.model_copy(update=changes)


def disk(purpose: str, path: str, **changes: Any) -> Disk:
    facts = Disk(
        purpose=purpose, path=path, mount_point="/", filesystem="ext4", source="/dev/nvme0n1p2",
        free=900 * GIB, total=3600 * GIB,
    )  # fmt: skip
    return facts.model_copy(update=changes)


def fleet(**of_spark2: Any) -> dict[str, HostFacts]:
    """Three nodes; what is given is wrong on spark2 only."""
    return {"spark1": host("spark1"), "spark2": host("spark2", **of_spark2), "spark3": host("spark3")}


def seen(facts: dict[str, HostFacts], with_settings: Settings | None = None) -> list[Finding]:
    """What the host's checks say, without what was only skipped."""
    found = run({HOST: facts}, with_settings or settings(engine__environment={"MAX_JOBS": "2"}))
    return [finding for finding in found if finding.severity is not Severity.SKIPPED]
