"""Errors with three parts: what happened, where, what to do next. The exit status is the restart policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum


class Exit(IntEnum):
    """Exit statuses of every `dsv41` process; systemd units and the supervisor decide on them."""

    OK = 0
    WARNINGS = 1
    USAGE = 2
    UNAVAILABLE = 69
    """A peer, rail, port, mount or disk is missing now: trying again later can help."""
    BUG = 70
    REFUSED = 78
    """Misconfigured or refused: never restarted, because the same thing would happen again."""


class Stage(StrEnum):
    """The seven stages, in order; spelled the same in modules, units, journal fields and tests."""

    CONFIG = "config"
    FABRIC = "fabric"
    SHARE = "share"
    PACK = "pack"
    RANK = "rank"
    ENGINE = "engine"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason why a stage did not pass. `hint` is the next step and is never empty.

    `transient` means that trying again later can help (exit 69); otherwise it is a refusal (exit 78). `check` is the
    id of the check that refused, as `dsv41 up --override` takes it.
    """

    stage: Stage
    what: str
    hint: str
    node: str | None = None
    rank: int | None = None
    transient: bool = False
    check: str | None = None

    def __post_init__(self) -> None:
        if not self.hint.strip():
            raise ValueError(f"refusal without a next step: {self.what}")

    def __str__(self) -> str:
        where = [self.node] if self.node else []
        if self.rank is not None:
            where.append(f"rank {self.rank}")
        head = " ".join(where)
        by = f" [{self.check}]" if self.check is not None else ""
        return f"{head + ', ' if head else ''}{self.stage}: {self.what} {self.hint}{by}"

    def to_json(self) -> dict[str, object]:
        return asdict(self) | {"stage": str(self.stage)}

    @classmethod
    def from_json(cls, raw: dict[str, object]) -> Refusal:
        return cls(**{**raw, "stage": Stage(str(raw["stage"]))})  # type: ignore[arg-type]


class Dsv41Error(Exception):
    """What happened, where, and what to do next."""

    def __init__(
        self,
        what: str,
        *,
        stage: Stage,
        hint: str,
        node: str | None = None,
        rank: int | None = None,
        transient: bool = False,
    ) -> None:
        self.refusals: tuple[Refusal, ...] = (
            Refusal(stage=stage, what=what, hint=hint, node=node, rank=rank, transient=transient),
        )
        super().__init__(str(self.refusals[0]))

    @property
    def exit_status(self) -> Exit:
        """69 when waiting can help with every reason, else 78."""
        return Exit.UNAVAILABLE if all(r.transient for r in self.refusals) else Exit.REFUSED


class Refused(Dsv41Error):
    """A stage refused; all its reasons together."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        if not self.refusals:
            raise ValueError("a refusal needs at least one reason")
        Exception.__init__(self, join(self.refusals))


class DeadlineExceeded(Dsv41Error):
    """A bounded wait ran out; says what it was waiting for."""


class PeerUnreachable(Dsv41Error):
    """Another node's supervisor did not answer."""


def join(refusals: Sequence[Refusal]) -> str:
    """All reasons, one a line."""
    return "\n".join(str(r) for r in refusals)
