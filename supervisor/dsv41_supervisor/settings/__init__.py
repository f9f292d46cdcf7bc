"""Stage 1 of 7: CONFIG → fabric. Takes JSON, gives Settings.

One frozen tree is the source of everything: the NixOS options are generated from it (`dsv41 schema`), the build
checks the rendered JSON with it (`dsv41 check-config`), and every process reads it at start. There is no second file.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41_adapters.registry import settings_model
from pydantic import BaseModel, Field, ValidationError, model_validator

from ..errors import Dsv41Error, Refused, Stage
from .base import Model
from .container import Container, unmountable
from .engine import Device, Engine, EngineKind, Nccl
from .fleet import Fleet, Node, Rail, Topology
from .operations import (
    AlertKind,
    Alerts,
    Checkpoint,
    Checks,
    Gateway,
    Guard,
    Incidents,
    Pack,
    PartitionName,
    ReadEngine,
    Recovery,
    Share,
    ShareMode,
    Supervisor,
    Tolerable,
    UnitBackend,
)
from .shards import uncuttable

if TYPE_CHECKING:
    AdapterSettings = BaseModel
else:
    AdapterSettings = settings_model()


class Settings(Model):
    """The whole tree. Everything a rank's behaviour depends on is in here, and its hash is compared on all nodes."""

    fleet: Fleet = Field(description="The nodes that serve one model together.")
    checkpoint: Checkpoint = Field(description="The model on disk.")
    share: Share = Field(default_factory=Share, description="How every node gets to the checkpoint.")
    pack: Pack = Field(default_factory=Pack, description="Packed Engram rows and their cache.")
    engine: Engine = Field(description="What SGLang is told.")
    adapters: AdapterSettings = Field(
        default_factory=AdapterSettings, description="Changes to the engine; each is off until it is named here."
    )
    gateway: Gateway = Field(default_factory=Gateway, description="The endpoint that users see.")
    guard: Guard = Field(default_factory=Guard, description="Memory guard.")
    recovery: Recovery = Field(default_factory=Recovery, description="What happens after a rank is lost.")
    alerts: Alerts = Field(default_factory=Alerts, description="Who is told.")
    incidents: Incidents = Field(default_factory=Incidents, description="What is kept of every failure.")
    supervisor: Supervisor = Field(default_factory=Supervisor, description="The daemon on every node.")
    checks: Checks = Field(default_factory=Checks, description="What is checked before a fleet starts.")

    @model_validator(mode="after")
    def _cross_field(self) -> Settings:
        problems: list[str] = []
        if self.engine.parallelism.tp_size != self.fleet.world_size:
            problems.append(
                f"engine.parallelism.tp_size is {self.engine.parallelism.tp_size}, but fleet.nodes has "
                f"{self.fleet.world_size}: one GPU a node, so the two are equal"
            )
        if self.engine.device is Device.CUDA:
            problems += [
                f"fleet.nodes.{name}.rails.{rail_name}.rdma_device is null, but engine.device is cuda"
                for name, node in self.fleet.nodes.items()
                for rail_name, rail in node.rails.items()
                if rail.rdma_device is None
            ]
            problems += [
                f"fleet.nodes.{name}.rails is empty, but engine.device is cuda and the fleet has several nodes"
                for name, node in self.fleet.nodes.items()
                if not node.rails and self.fleet.world_size > 1
            ]
            if self.engine.kind is EngineKind.SGLANG:
                cut = self.engine.parallelism
                problems += uncuttable(cut.tp_size, cut.ep_size, padded=self.adapters.tp_pad is not None)
        if self.engine.container is not None:
            problems += unmountable(self)
        if self.checks.override:
            from ..checks import unknown_ids

            problems += [
                f"checks.override names {name!r}, and no check is called that: dsv41 doctor --list shows them"
                for name in unknown_ids(self.checks.override)
            ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def adapters_asked(self) -> dict[str, dict[str, Any]]:
        """Settings of every adapter that is not off, by name."""
        return {name: value for name, value in self.adapters.model_dump(mode="json").items() if value is not None}

    @cached_property
    def hash(self) -> str:
        """sha256 over the canonical JSON; equal on all nodes or the fleet does not start."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def path(self, template: str, node: str) -> Path:
        """A path setting on one node: `{node}` is replaced by the node's name."""
        return Path(template.replace("{node}", node))

    def state_dir(self, node: str) -> Path:
        return self.path(self.supervisor.state_dir, node)

    def run_dir(self, node: str) -> Path:
        return self.path(self.supervisor.run_dir, node)

    def rows_dir(self, node: str) -> Path:
        return self.path(self.pack.directory, node)

    def checkpoint_dir(self, node: str) -> Path:
        return self.path(self.checkpoint.path, node)


def parse(text: str | bytes, source: str = "settings") -> Settings:
    """Settings from JSON text. Raises Refused with one reason per wrong value, each with its dotted path."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Dsv41Error(
            f"{source} is not JSON: {error}.", stage=Stage.CONFIG, hint="Write it with dsv41 or nixos-rebuild."
        ) from None
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        from .wrong import refusal

        schema = Settings.model_json_schema()
        raise Refused(refusal(problem, source, schema) for problem in error.errors(include_url=False)) from None


def load(path: Path) -> Settings:
    """Settings from a file. Raises Refused (bad values) or Dsv41Error (unreadable)."""
    try:
        text = path.read_bytes()
    except OSError as error:
        hint = "Name the settings file with --settings."
        if isinstance(error, PermissionError):
            hint = "Run this as root, or as a member of the group that may read it."
        raise Dsv41Error(f"cannot read {path}: {error.strerror}.", stage=Stage.CONFIG, hint=hint) from None
    return parse(text, str(path))


__all__ = [
    "AlertKind",
    "Alerts",
    "Checkpoint",
    "Checks",
    "Container",
    "Device",
    "Engine",
    "EngineKind",
    "Fleet",
    "Gateway",
    "Guard",
    "Incidents",
    "Nccl",
    "Node",
    "Pack",
    "PartitionName",
    "Rail",
    "ReadEngine",
    "Recovery",
    "Settings",
    "Share",
    "ShareMode",
    "Supervisor",
    "Tolerable",
    "Topology",
    "UnitBackend",
    "load",
    "parse",
]
