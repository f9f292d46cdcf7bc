"""What an adapter is: a declaration that supervisor, documentation and engine can all read. Data only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

EX_REFUSED = 78
"""Misconfigured or refused: the same thing would happen again, so nothing restarts it."""

HINT = "Turn it off or port it: adapters/STATUS.md."


class State(StrEnum):
    """What an adapter is in one process. Asked for is in place, or the rank ends: there is no third way."""

    OFF = "off"
    ARMED = "armed"
    ENGAGED = "engaged"
    """Armed, and called at least once."""
    REFUSED = "refused"


class Role(StrEnum):
    """The engine's processes, each of which loads the plugin."""

    LAUNCHER = "launcher"
    SCHEDULER = "scheduler"
    DETOKENIZER = "detokenizer"
    OTHER = "other"


class How(StrEnum):
    """What is done to a target. `relies` changes nothing: the change would be wrong if this code moved."""

    REPLACE = "replace"
    AROUND = "around"
    BEFORE = "before"
    AFTER = "after"
    RELIES = "relies"


class Standing(StrEnum):
    """How far it got, as in STATUS.md: written for this engine, or shown by a test on this engine too."""

    PORTED = "ported"
    VERIFIED = "verified"


class AdapterSettings(BaseModel):
    """Base of every adapter's settings; an adapter reads these and never the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


@dataclass(frozen=True, slots=True)
class Target:
    """One piece of the engine: `module:Qualified.name`, and the fingerprints it was read at."""

    path: str
    known: Mapping[str, str]
    """Fingerprint → the engine version it was read at."""
    how: How
    process: Role | None = None
    """The one kind of process that hooks it; None is every one in the adapter's `processes`."""

    def __post_init__(self) -> None:
        module, colon, name = self.path.partition(":")
        if not (module and colon and name):
            raise ValueError(f"target {self.path!r} is not `module:Qualified.name`")
        if not self.known:
            raise ValueError(f"target {self.path} has no known fingerprint")

    @property
    def module(self) -> str:
        return self.path.partition(":")[0]

    @property
    def name(self) -> str:
        return self.path.partition(":")[2]

    @property
    def hooked(self) -> bool:
        return self.how is not How.RELIES

    def hooked_in(self, role: Role) -> bool:
        """Asked about a process that is one of the adapter's."""
        return self.hooked and self.process in (None, role)


@dataclass(frozen=True, slots=True)
class Adapter:
    """One gated change to the engine. `name` is also its folder and its settings key."""

    name: str
    changes: str
    """One sentence: what is different when it is armed."""
    targets: tuple[Target, ...]
    settings: type[AdapterSettings]
    engages: str
    """When its first call comes, so that `armed` long after that is worth a look."""
    until: str
    """What has to happen upstream for it to be deleted."""
    credit: str
    standing: Standing
    same_output: bool
    """Tokens and log-probabilities are those of the unchanged engine."""
    world_sizes: frozenset[int] | None = None
    """World sizes it was made for; None is any."""
    processes: frozenset[Role] = field(default=frozenset({Role.SCHEDULER}))
    """Roles that hook it and must report it armed; in the others it is fitted only."""
    after: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    needs_rows: bool = False
    """It reads this rank's packed rows, so the plan must say where they are."""

    def __post_init__(self) -> None:
        for target in self.targets:
            if target.process is not None and target.process not in self.processes:
                raise ValueError(f"{target.path} is hooked in the {target.process}, where {self.name} is not used")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one adapter is refused."""

    adapter: str
    what: str
    kind: Literal["unknown", "world", "conflict", "order", "fit", "settings", "rows", "hook", "verify", "plan"]

    def __str__(self) -> str:
        return f"adapter {self.adapter} refused: {self.what} {HINT}"


class AdapterRefused(SystemExit):
    """An adapter that was asked for cannot be in place; the process ends with status 78.

    A SystemExit, because the engine logs ordinary exceptions of a plugin and carries on without the change.
    """

    def __init__(self, reasons: Iterable[Reason]) -> None:
        self.reasons = tuple(reasons)
        if not self.reasons:
            raise ValueError("a refusal needs at least one reason")
        super().__init__(EX_REFUSED)

    def __str__(self) -> str:
        return "\n".join(str(reason) for reason in self.reasons)
