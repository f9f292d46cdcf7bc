"""Blocking reads with a bound, each in a daemon thread: a dead NFS server holds that thread, never who asked.

A read that has not come back is not started a second time: who asks again waits for the first one, within a bound of
their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .roots import Unreadable

T = TypeVar("T")


class Unread(Unreadable):
    """A reader did not come back in time, or failed; the text says what was waited for."""


@dataclass(slots=True)
class BoundedReads:
    """Readers by name. Lives in one event loop."""

    _running: dict[str, tuple[asyncio.Future[Any], float]] = field(default_factory=dict)

    async def read(self, name: str, work: Callable[[], T], seconds: float) -> T:
        """Run `work` in a thread, or wait for the run of that name that is on its way. Raises Unread."""
        if name not in self._running:
            self._start(name, work)
        future, began_s = self._running[name]
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(future)  # type: ignore[no-any-return]
        except TimeoutError:
            raise Unread(f"waited {time.monotonic() - began_s:.1f} s for {name}") from None
        except (OSError, ValueError, LookupError) as error:
            raise Unread(f"{name} cannot be read: {error}") from None

    def _start(self, name: str, work: Callable[[], Any]) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._running[name] = future, time.monotonic()

        def settle(result: Any, error: BaseException | None) -> None:
            self._running.pop(name, None)
            if error is not None:
                future.set_exception(error)
                future.exception()  # Seen: perhaps nobody waits any more.
            else:
                future.set_result(result)

        def run() -> None:
            result, failure = None, None
            try:
                result = work()
            except BaseException as error:
                failure = error
            # A closed loop: nobody waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, failure)

        # Not the loop's executor: its few threads could all hang on one dead mount, and Python joins them at exit.
        threading.Thread(target=run, name=f"dsv41-read-{name}", daemon=True).start()
