"""The requests under way, and how each is ended when its engine goes away."""

from __future__ import annotations

import asyncio
from types import TracebackType

from .answers import Failure, engine_lost
from .observe import Seen
from .readiness import Readiness


class Cut(Exception):
    """This request was ended from outside; says what to tell the client."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.code)
        self.failure = failure


class Ticket:
    """One request under way. As an async context it can be ended at any await inside; then it raises Cut.

    Attributes: `seen`: what is known of its answer so far, for whoever counts.
    """

    def __init__(self, running: Running, boot: str | None) -> None:
        self.boot = boot
        self.seen = Seen()
        self._running = running
        self._scope = asyncio.timeout(None)
        self._why: Failure | None = None

    def cut(self, why: Failure) -> None:
        if self._why is None:
            self._why = why
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> Ticket:
        await self._scope.__aenter__()
        self._running.tickets.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.tickets.discard(self)
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            assert self._why is not None
            raise Cut(self._why) from None


class Running:
    """All requests under way."""

    def __init__(self) -> None:
        self.tickets: set[Ticket] = set()

    def open(self, boot: str | None) -> Ticket:
        return Ticket(self, boot)

    def fleet_changed(self, now: Readiness) -> None:
        """End what belongs to a boot that no longer serves: a hung engine must not hold its clients."""
        for ticket in [t for t in self.tickets if not now.serves(t.boot)]:
            ticket.cut(
                engine_lost(f"The engine was lost while it answered. {now.sentence}", now.retry_after_s)
            )

    def stop(self) -> None:
        """End everything: the gateway stops."""
        for ticket in list(self.tickets):
            ticket.cut(engine_lost("The gateway is stopping. Try again in 10 s.", 10.0))
