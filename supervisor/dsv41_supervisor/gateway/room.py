"""How many bytes of bodies are held while they arrive. Pure.

A body may be large and take two minutes, and any number may come at once: without a bound in common, each key could
fill the memory that is the model's.
"""

from __future__ import annotations

from .answers import Failure
from .refuse import Refuse

ALWAYS_BYTES = 1 << 20
"""A body up to this is taken however full it is: what people write by hand, and most of what agents send."""
RETRY_S = 2.0


class Room:
    """Room for bodies that arrive, in bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    def share(self) -> Share:
        return Share(self)

    def take(self, more: int, have: int) -> None:
        """Raises Refuse for a large body when those that are arriving have filled the room."""
        if have + more > ALWAYS_BYTES and self.held + more > self._most:
            message = "Too many large requests arrive at once. The fleet is busy: try again later."
            raise Refuse(Failure(503, message, "overloaded", "too_many_large_bodies", retry_after_s=RETRY_S))
        self.held += more


class Share:
    """One body's part; given back at the end of the block."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._have = 0

    def grow(self, more: int) -> None:
        """Raises Refuse."""
        self._room.take(more, self._have)
        self._have += more

    def __enter__(self) -> Share:
        return self

    def __exit__(self, *_: object) -> None:
        self._room.held -= self._have
