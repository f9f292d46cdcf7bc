"""Refusals as a person reads them: each with its check's id, and how to start anyway where that is allowed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..checks import FABRIC, all_checks
from ..errors import Refusal

_PLANNED = {"nccl-hca", "rdma-gid", "rdma-gid-choice"}
"""NCCL cannot be planned without what these look for: the launch refuses it again, overridden or not."""


def can_be_overridden(check: str | None) -> bool:
    """Whether `dsv41 up --override` lets a boot pass this check. The doctor's checks of a host refuse no boot."""
    return check not in _PLANNED and any(each.id == check and each.kind == FABRIC for each in all_checks())


def to_start_anyway(refusals: Sequence[Refusal], overridden: Iterable[str] = ()) -> list[str]:
    """The line after refusals that says which of them may be overridden; none when none may.

    `overridden` are the checks that are passed already: an order names all of them again.
    """
    ids = list(dict.fromkeys(str(r.check) for r in refusals if can_be_overridden(r.check)))
    if not ids:
        return []
    command = " ".join(["dsv41 up", *(f"--override {name}" for name in sorted({*overridden, *ids}))])
    if all(can_be_overridden(r.check) for r in refusals):
        return [f"to start anyway: {command}"]
    return [f"the rest has to be mended first; then, to start anyway despite {', '.join(ids)}: {command}"]
