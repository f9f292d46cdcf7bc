"""Settings of the other way to run the engine: an image, by podman, for machines without the Nix engine (DGX OS)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, StringConstraints

from .base import AbsolutePath, Model

if TYPE_CHECKING:
    from . import Settings

_DOMAIN = r"(?:localhost|[a-z0-9-]+(?:\.[a-z0-9-]+)+|[a-z0-9.-]+:[0-9]{1,5})(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_NAME = re.compile(rf"(?P<domain>{_DOMAIN}/)?{_PART}(?:/{_PART})*(?P<tag>:{_TAG})?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def _pinned(reference: str) -> str:
    """`registry/name@sha256:digest` and nothing else. Raises ValueError that says how to get there."""
    name, at, digest = reference.partition("@")
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError("engine.container.image is no image reference; write registry/name@sha256:<64 hex digits>")
    if not at:
        raise ValueError(
            "engine.container.image names no digest: a tag moves, and all ranks run the same bits or none. Run podman "
            f"pull {name}, then podman image inspect --format '{{{{.RepoDigests}}}}' {name}, and write what it prints"
        )
    if _DIGEST.fullmatch(digest) is None:
        raise ValueError("engine.container.image has no sha256 digest after @; write sha256: and 64 of 0-9 and a-f")
    if found["tag"] is not None:
        raise ValueError(f"engine.container.image has a tag and a digest; take {found['tag']} out, the digest decides")
    if found["domain"] is None:
        raise ValueError(
            "engine.container.image names no registry, and which one is meant differs between machines; write "
            f"docker.io/{name if '/' in name else f'library/{name}'}@… or the registry it is from"
        )
    return reference


def _mountable(path: str) -> str:
    if "," in path or '"' in path:
        raise ValueError(f"{path!r} cannot be mounted by podman: take the comma or quote out of its name")
    return path


MountablePath = Annotated[AbsolutePath, AfterValidator(_mountable)]


class Container(Model):
    """Everything else that podman is told follows from the fleet: see `rank/container.py`."""

    image: Annotated[str, StringConstraints(max_length=512), AfterValidator(_pinned)] = Field(
        description="Image with SGLang, the adapters and the row store, as registry/name@sha256:<digest>. It is never "
        "pulled by a rank: run podman pull on every node first. A tag is refused: two nodes would run two engines."
    )
    podman: Annotated[str, StringConstraints(pattern=r"^(/[^,]*|[A-Za-z0-9._-]+)$")] = Field(
        default="podman", description="The podman to use: a path, or a name that is looked for on PATH. 4.1 or newer."
    )
    python: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._/-]+$")] = Field(
        default="python3", description="Python in the image; a bare name is looked for on the image's own PATH."
    )
    gpu: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]*/[A-Za-z0-9_.-]+=[A-Za-z0-9][A-Za-z0-9_.:-]*$")
    ] = Field(
        default="nvidia.com/gpu=all",
        description="The GPU, as a CDI device (vendor/class=name). nvidia-ctk cdi list shows what a machine has.",
    )
    cache_dir: MountablePath = Field(
        default="/var/cache/dsv41/engine",
        description="HOME of the engine, writable: kernels it has compiled are kept here between boots.",
    )
    mounts: tuple[MountablePath, ...] = Field(
        default=(),
        description="More of this machine's paths that the engine reads, at the same place and read-only. Checkpoint, "
        "rows, tables and what engine.python_path and engine.nccl.library name are mounted without being listed.",
    )


def unmountable(settings: Settings) -> Iterator[str]:
    """Paths elsewhere in the settings that podman's --mount cannot name; sentences."""
    named = {
        "checkpoint.path": settings.checkpoint.path,
        "pack.directory": settings.pack.directory,
        "supervisor.run_dir": settings.supervisor.run_dir,
        "engine.nccl.library": settings.engine.nccl.library or "",
        **{f"engine.python_path.{i}": path for i, path in enumerate(settings.engine.python_path)},
    }
    for name, path in named.items():
        if "," in path or '"' in path:
            yield f"{name} has a comma or a quote, and podman cannot mount such a path into engine.container"
