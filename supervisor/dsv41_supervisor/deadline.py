"""Deadline: every wait in the program takes one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from .errors import DeadlineExceeded, Stage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock, and what is waited for until then."""

    waiting_for: str
    at_s: float
    stage: Stage = Stage.RANK
    hint: str = "Run dsv41 status to see what each node is doing."

    @classmethod
    def after(cls, seconds: float, waiting_for: str, **where: object) -> Deadline:
        return cls(waiting_for, time.monotonic() + seconds, **where)  # type: ignore[arg-type]

    @property
    def left_s(self) -> float:
        return max(0.0, self.at_s - time.monotonic())

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self.at_s

    def error(self, detail: str = "") -> DeadlineExceeded:
        more = f" ({detail})" if detail else ""
        return DeadlineExceeded(
            f"gave up waiting for {self.waiting_for}{more}.", stage=self.stage, hint=self.hint, transient=True
        )

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Await until the deadline. Raises DeadlineExceeded naming what was waited for."""
        try:
            async with asyncio.timeout(self.left_s):
                return await awaitable
        except TimeoutError:
            raise self.error() from None

    async def until(self, condition: Callable[[], Awaitable[bool]], period_s: float = 0.1) -> None:
        """Ask `condition` every `period_s` seconds until it holds. Raises DeadlineExceeded."""
        while not await self.wait(condition()):
            if self.expired:
                raise self.error()
            await asyncio.sleep(min(period_s, self.left_s))
