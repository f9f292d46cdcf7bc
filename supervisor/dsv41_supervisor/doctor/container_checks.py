"""Checks of `engine.container`: what a rank in a container needs on its node. Pure; also run before every boot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..checks import CONTAINER, Found, Severity, check
from ..errors import Stage
from ..settings import Container, Device, Settings
from .facts import ContainerFacts

Fleet = Mapping[str, ContainerFacts]
LEAST_PODMAN = (4, 1)
"""The first that resolves CDI devices. Source: NVIDIA container toolkit's documentation."""


def _container(settings: Settings) -> Container:
    assert settings.engine.container is not None
    return settings.engine.container


@check("container-podman", kind=CONTAINER, severity=Severity.REFUSAL, stage=Stage.ENGINE,
       what="With engine.container: podman is there, answers, and knows CDI devices (4.1).",
       source="issue 6; tests/container")  # fmt: skip
def _podman(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        version = re.match(r"(\d+)\.(\d+)", facts.version or "")
        if facts.problem is not None:
            yield Found(
                node, f"podman cannot be asked: {facts.problem}.",
                f"Install podman, crun and catatonit on {node} (NixOS: the module does), or correct "
                "engine.container.podman.", where="engine.container.podman",
            )  # fmt: skip
        elif version is None or (int(version[1]), int(version[2])) < LEAST_PODMAN:
            yield Found(
                node, f"podman is {facts.version or 'of an unknown version'}, expected 4.1 or newer: older ones know "
                "no CDI devices.", f"Install a newer podman on {node}.",
            )  # fmt: skip


@check("container-image", kind=CONTAINER, severity=Severity.REFUSAL, stage=Stage.ENGINE,
       what="With engine.container: the image is on the node, by its digest. A rank never pulls.",
       source="users W3: an image pulled on one node only")  # fmt: skip
def _image(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    image = _container(settings).image
    for node, facts in fleet.items():
        if facts.image is False:
            yield Found(node, f"the engine's image {image} is not there.",
                        f"Run podman pull {image} on {node}, as the user that runs ranks (root under systemd).",
                        where="engine.container.image")  # fmt: skip


@check("container-device", kind=CONTAINER, severity=Severity.REFUSAL, stage=Stage.ENGINE,
       what="With engine.container: a CDI spec of the node lists the GPU.",
       source="NVIDIA container toolkit; not run on GB10")  # fmt: skip
def _device(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if settings.engine.device is not Device.CUDA:
        return
    gpu = _container(settings).gpu
    for node, facts in fleet.items():
        if facts.devices is None or gpu in facts.devices:
            continue
        listed = f"listed are {', '.join(facts.devices[:8])}" if facts.devices else "no spec lists a device"
        unread = f" ({'; '.join(facts.unread_specs)})" if facts.unread_specs else ""
        yield Found(
            node, f"no CDI spec in /etc/cdi or /var/run/cdi has {gpu}; {listed}{unread}.",
            f"Run nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml on {node} (NixOS: "
            "hardware.nvidia-container-toolkit.enable = true), or correct engine.container.gpu.",
            where="engine.container.gpu",
        )  # fmt: skip


@check("container-mounts", kind=CONTAINER, severity=Severity.REFUSAL, stage=Stage.ENGINE,
       what="With engine.container: every path and device that the container is given is on the node.",
       source="podman-run(1): a mount of nothing fails")  # fmt: skip
def _mounts(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        for path in facts.missing:
            do_next = (
                f"Load the RDMA modules on {node} (modprobe ib_uverbs rdma_ucm)." if path == "/dev/infiniband" else
                f"Put it on {node}, or correct the setting that names it."
            )  # fmt: skip
            yield Found(node, f"{path} is to be given to the container, and is not there.", do_next)


@check("container-left", kind=CONTAINER, severity=Severity.WARNING, stage=Stage.RANK,
       what="With engine.container: no container of this fleet is left without its rank.",
       source="users S6: stop says stopped, and containers run")  # fmt: skip
def _left(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        for container in facts.left:
            name = container.partition(" ")[0]
            yield Found(node, f"the container {container} is left of an earlier rank.",
                        f"Run podman rm --force {name} on {node}; the next rank there does it too.",
                        transient=True)  # fmt: skip
