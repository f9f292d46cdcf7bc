"""In which order a boot goes, as the head sees it: nothing runs, every node holds the lease, workers, head. Pure.

`due` says which orders are to be given now; `hear` takes what a node said. The controller only carries messages: it
gives no order that is not due. Why two boots never overlap is in `lease.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from ..rank.plan import Boot
from .lease import Hold


class Stand(IntEnum):
    """How far a node is in the boot that the head means."""

    NOTHING = 0
    PASSED = 1
    """Its checks passed."""
    WAITING = 2
    """Its rank waits at the rendezvous, or is further."""
    READY = 3


class What(StrEnum):
    STOP = "stop"
    GRANT = "grant"
    START = "start"


@dataclass(frozen=True, slots=True)
class Order:
    node: str
    what: What


@dataclass(frozen=True, slots=True)
class Said:
    """What matters here of one status of a node."""

    highest_generation: int
    boot_id: str | None
    hold: Hold


class NotYet(ValueError):
    """A boot cannot be opened; the text names the nodes that have not said that nothing runs."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """The head's side of the lease. Nodes are in rank order: the head's own comes first."""

    nodes: tuple[str, ...]
    generation: int = 0
    """The highest known anywhere."""
    boot: Boot | None = None
    empty: frozenset[str] = frozenset()
    """Nodes that said: nothing runs, and nothing up to `generation` will."""
    granted: frozenset[str] = frozenset()
    admitted: bool = False
    """All nodes were compared and are the same."""
    started: frozenset[str] = frozenset()

    def close(self) -> Sequence:
        """The boot is over: it is not renewed any more, and every node has to say again that nothing runs."""
        return Sequence(self.nodes, self.generation)

    def open(self, boot_id: str, rendezvous_port: int) -> Sequence:
        """A new boot, newer than every other. Raises NotYet."""
        full = [node for node in self.nodes if node not in self.empty]
        if full or self.boot is not None:
            raise NotYet(f"{', '.join(full) or 'a boot that was not closed'}: not seen to be stopped")
        generation = self.generation + 1
        return Sequence(self.nodes, generation, Boot(boot_id, generation, rendezvous_port))

    def taken_up(self, boot: Boot) -> Sequence:
        """The boot of the supervisor before this one: renewed, not started again."""
        everyone = frozenset(self.nodes)
        return Sequence(self.nodes, max(self.generation, boot.generation), boot, frozenset(), everyone, True, everyone)

    def hear(self, node: str, said: Said) -> Sequence:
        """The sequence after one status of a node."""
        if self.boot is not None:
            if said.boot_id == self.boot.id:
                return replace(self, granted=self.granted | {node})
            return self
        book = self
        if said.highest_generation > self.generation:
            # What the others promised was about older boots only.
            book = replace(self, generation=said.highest_generation, empty=frozenset())
        empty = said.hold is Hold.NONE and said.boot_id is None and said.highest_generation >= book.generation
        return replace(book, empty=book.empty | {node} if empty else book.empty - {node})

    def admit(self) -> Sequence:
        """Every node holds the lease and all are the same: ranks may be started."""
        return replace(self, admitted=True) if self.granted >= set(self.nodes) else self

    def ordered(self, order: Order) -> Sequence:
        """A start was given and taken."""
        return replace(self, started=self.started | {order.node}) if order.what is What.START else self

    def overtaken_by(self, said: Said) -> bool:
        """Whether another head has begun a boot since ours: it is newer, or as new and not ours."""
        boot = self.boot
        if boot is None:
            return False
        if said.highest_generation > boot.generation:
            return True
        return said.highest_generation == boot.generation and said.boot_id not in (None, boot.id)

    def renews(self, node: str) -> str | None:
        """The boot to name when the node is asked for its status."""
        return self.boot.id if self.boot is not None and node in self.granted else None

    def due(self, stands: Mapping[str, Stand]) -> tuple[Order, ...]:
        """What is to be ordered now; orders that were lost are due again."""
        if self.boot is None:
            return tuple(Order(node, What.STOP) for node in self.nodes if node not in self.empty)
        if self.granted < set(self.nodes):
            return tuple(Order(node, What.GRANT) for node in self.nodes if node not in self.granted)
        if not self.admitted:
            return ()
        head, *workers = self.nodes
        late = tuple(Order(node, What.START) for node in workers if node not in self.started)
        if late or head in self.started or any(stands[node] < Stand.WAITING for node in workers):
            return late
        return (Order(head, What.START),)
