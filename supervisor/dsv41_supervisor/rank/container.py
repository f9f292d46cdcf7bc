"""The engine's argv as podman is told it: stage 5 for `engine.container`. Pure. Not run on GB10.

The container is a way to bring files, not a second keeper of processes: it shares the network, makes no cgroup of its
own (so the unit's limits, scores and kills govern the engine as they do without podman), and ends with its rank. What
depends on who runs it and whence (user, limits, our own files) is added where it runs: `container_run.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..settings import Device, Settings

if TYPE_CHECKING:
    from .plan import Boot

CONTAINER_UNIT = "dsv41-container"
"""Looks at what a container needs, as root; see `container_look.py`."""
NODE_LABEL = "dsv41.node"
"""On every container of ours, with `fleet/node`: how one that was left is found, whatever its name."""
HOLDER_LABEL = "dsv41.holder"
"""`pid-start time` of the rank's process that started it. When that is gone, the container is a leftover."""
BOOT_LABEL = "dsv41.boot"
ENVIRONMENT = "environment"
"""In the rank's report directory, for its user alone: values of variables are never in an argv, which all may read."""
SECCOMP = Path(__file__).with_name("container_seccomp.json")
"""Podman's own profile lacks io_uring, which the row store reads with. Ours refuses what an engine has no use for."""
SHM_SIZE = "32g"
"""A limit and no reservation. Podman's own 64 MiB break NCCL and torch; source: what the public recipes set."""
RDMA_DEVICES = "/dev/infiniband"


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """What the rank's process needs beyond the argv."""

    name: str
    node: str
    cache_dir: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "node": self.node, "cache_dir": self.cache_dir}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ContainerPlan:
        return cls(str(raw["name"]), str(raw["node"]), str(raw["cache_dir"]))


def node_label(settings: Settings, node: str) -> str:
    """Two fleets may share a machine (the demo does), and so may two nodes."""
    return f"{settings.fleet.name}/{node}"


def container_plan(settings: Settings, node: str, boot: Boot) -> ContainerPlan | None:
    """None where the engine runs by its own Python."""
    container = settings.engine.container
    if container is None:
        return None
    rank = settings.fleet.nodes[node].rank
    return ContainerPlan(
        name=f"dsv41-{settings.fleet.name}-{node}-rank{rank}-g{boot.generation}",
        node=node_label(settings, node),
        cache_dir=str(settings.path(container.cache_dir, node)),
    )


def podman_argv(
    settings: Settings, node: str, boot: Boot, plan: ContainerPlan, document: Path, engine: list[str]
) -> list[str]:
    """`podman run` around `engine`, whose first word is the Python in the image. `document`: the rank's plan."""
    directory = document.parent
    container = settings.engine.container
    assert container is not None
    argv = [
        container.podman, "run",
        # A rank never fetches: it would fetch on one node and not on another. What is not there is refused before.
        "--rm", "--pull=never",
        "--name", plan.name,
        "--label", f"{NODE_LABEL}={plan.node}",
        "--label", f"{BOOT_LABEL}={boot.id}",
        # Rails, GIDs and the rendezvous are the machine's own. So is its name: ProtectHostname lets nobody set one.
        "--network=host", "--uts=host", "--http-proxy=false",
        # In the unit's own cgroup, conmon too: MemoryMax, OOM scores and KillMode mean the engine, and no scope of
        # podman's outlives the unit. Podman allows that with a PID namespace of the container's own only, which has a
        # merit: whoever kills its first process has killed all of them. --init is that process; SGLang is no PID 1.
        "--cgroups=disabled", "--init",
        # Not the host's /dev/shm: what a killed engine left there would hold memory, which on a GB10 is the GPU's.
        "--ipc=private", f"--shm-size={SHM_SIZE}",
        # READY=1 is the rank process's to say.
        "--sdnotify=ignore",
        # The engine writes to our pipe itself; a copy in podman's own log would fill a disk.
        "--log-driver=passthrough",
        # Not --read-only: crun 1.8.1 remounts the root before the hooks of nvidia-ctk run, which link the driver's
        # libraries in it, and no rank would start. The engine's user owns nothing there, and --rm forgets the rest.
        # Kernels are compiled in /tmp and loaded from there; not every image has one.
        "--tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777,size=4g",
        "--cap-drop=all", "--security-opt=no-new-privileges", "--security-opt=label=disable",
        "--env-file", str(directory / ENVIRONMENT),
    ]  # fmt: skip
    if settings.engine.device is Device.CUDA:
        argv += ["--device", container.gpu]
    if any(rail.rdma_device is not None for rail in settings.fleet.nodes[node].rails.values()):
        # No capability goes with it: registered memory is bounded by RLIMIT_MEMLOCK, which the unit lifts.
        argv += ["--device", RDMA_DEVICES]
    for path in read_only(settings, node):
        argv += ["--mount", f"type=bind,source={path},destination={path},readonly"]
    for path in (str(directory), plan.cache_dir):
        argv += ["--mount", f"type=bind,source={path},destination={path}"]
    # Reports go into the directory; what it is told the engine cannot change.
    argv += ["--mount", f"type=bind,source={document},destination={document},readonly"]
    return [*argv, "--entrypoint", engine[0], container.image, *engine[1:]]


def read_only(settings: Settings, node: str) -> list[str]:
    """This machine's paths that the engine reads, each at its own place: what the plan names is found there."""
    engine = settings.engine
    assert engine.container is not None
    paths = [settings.checkpoint_dir(node)]
    if settings.adapters_asked:
        paths.append(settings.rows_dir(node))
    templates = [*engine.python_path, *engine.container.mounts]
    if engine.speculative is not None and engine.speculative.sps_table is not None:
        templates.append(engine.speculative.sps_table)
    if engine.nccl.library is not None and engine.device is Device.CUDA:
        templates.append(engine.nccl.library)
    paths += [settings.path(template, node) for template in templates]
    return list(dict.fromkeys(map(str, paths)))


def environment_file(environment: dict[str, str]) -> str:
    """For --env-file. Podman takes each line as it is (pkg/env/env.go, 4.3 to 5.8): no quotes, no line breaks.

    Raises ValueError that names the variable, never its value.
    """
    for name, value in environment.items():
        if any(c in value for c in "\n\r\0"):
            raise ValueError(f"the value of {name} has a line break, which a container cannot be given")
    return "".join(f"{name}={value}\n" for name, value in environment.items())
