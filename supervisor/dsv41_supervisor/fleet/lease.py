"""Which boot of the fleet this node serves, whether its rank may run, and until when. Pure: time and messages come in,
actions go out. `node.py` does nothing about a rank that this machine did not ask for.

One boot of the fleet is one lease, granted and renewed by the head. Three rules keep every other boot out:

1. *Generations only grow.* A node remembers the highest it has seen, and forbids all up to a number when it is told to
   stop; so a delayed message of an older boot can neither start nor keep a rank.
2. *A grant or a renewal answers to something this node said.* Each status carries a `Stamp` (this supervisor's life,
   and when it was said); the lease runs from there, not from when the answer came. So a message that was held up,
   repeated, or meant for a supervisor before this one is worth nothing.
3. *One rank, once.* A lease is taken only when no rank is here and that was looked at; a boot starts its rank at most
   once on a node.

The head opens a boot only when every node has told it that nothing runs (`sequence.py`), and starts a rank only when
every node holds the lease. So two boots never have ranks at the same time, whatever is lost, late or repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from ..rank.plan import Boot


class StaleBoot(ValueError):
    """An order of a boot that is over or not allowed here; the text says which boot is known and which was named."""


class Hold(StrEnum):
    """What is known about this node's rank as far as leases go."""

    UNKNOWN = "unknown"
    """This supervisor has just started and has not looked yet."""
    NONE = "none"
    """Seen: no unit, no process."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Must go, and was not seen gone yet."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a node said something, and which life of its supervisor did: what a renewal has to answer to."""

    life: str
    at_s: float

    def __str__(self) -> str:
        return f"{self.life}.{self.at_s * 1000:.0f}"

    @classmethod
    def parse(cls, text: str) -> Stamp:
        """Raises ValueError."""
        life, _, at_ms = text.rpartition(".")
        if not life:
            raise ValueError(f"{text!r} is not a stamp")
        return cls(life, int(at_ms) / 1000)


# -- what can happen to a node's lease ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grant:
    """The head gives this node the lease of a new boot."""

    boot: Boot
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Renew:
    """The head still lives and means this boot."""

    boot_id: str
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Start:
    """The head wants this node's rank of a boot to run."""

    boot_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing of this generation or an older one may run here from now on."""

    generation: int
    why: str = "the head said so"


@dataclass(frozen=True, slots=True)
class Looked:
    """A supervisor that has just started looked at its unit: the boot of the rank that runs, None when none runs."""

    boot_id: str | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The rank died, froze or was refused; what is left of it is being stopped."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Looked: nothing of the rank is left."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Happening = Grant | Renew | Start | Stop | Looked | Failed | Gone | Tick


# -- what is to be done ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartRank:
    boot: Boot


@dataclass(frozen=True, slots=True)
class StopRank:
    why: str


@dataclass(frozen=True, slots=True)
class Save:
    """Write the book down before anybody hears of the change."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Nothing changed, and why."""

    why: str


Action = StartRank | StopRank | Save | Refuse
RAN_OUT = "the head has not renewed the lease"


@dataclass(frozen=True, slots=True)
class LeaseBook:
    """What one node knows about leases. Times are seconds on the node's own monotonic clock."""

    life: str = ""
    highest_generation: int = 0
    boot: Boot | None = None
    expires_at_s: float = 0.0
    hold: Hold = Hold.UNKNOWN
    spent: bool = False
    """The rank of this boot was started here; it is not started twice."""
    confirmed: bool = False
    """The head granted or renewed in this life. A lease taken over from the supervisor before is a guess: the rank's
    process keeps its own count until the head has spoken (`RankLease`)."""

    def step(self, what: Happening, now_s: float, ttl_s: float) -> tuple[LeaseBook, tuple[Action, ...]]:
        """The book after something happened, and what to do, in order."""
        match what:
            case Grant():
                return self._grant(what, now_s, ttl_s)
            case Renew():
                return self._renew(what, now_s, ttl_s)
            case Start():
                return self._start(what, now_s)
            case Stop():
                return self._stop(what)
            case Looked():
                return self._looked(what, now_s, ttl_s)
            case Failed():
                return (replace(self, hold=Hold.STOPPING) if self.hold is Hold.RUNNING else self), ()
            case Gone():
                return (replace(self, hold=Hold.NONE) if self.hold is not Hold.UNKNOWN else self), ()
            case Tick():
                if self.boot is None or now_s < self.expires_at_s or self.hold is Hold.UNKNOWN:
                    return self, ()
                return self._without(RAN_OUT)

    def left_s(self, now_s: float) -> float:
        """Seconds until the lease ends; 0 without one."""
        return max(0.0, self.expires_at_s - now_s) if self.boot is not None else 0.0

    def live(self, now_s: float) -> Boot | None:
        """The boot whose lease has not run out."""
        return self.boot if self.boot is not None and now_s < self.expires_at_s else None

    def stamp(self, now_s: float) -> Stamp:
        """To be told to the head with each status."""
        return Stamp(self.life, now_s)

    # -- private ---------------------------------------------------------------------------------------------------

    def _grant(self, what: Grant, now_s: float, ttl_s: float) -> tuple[LeaseBook, tuple[Action, ...]]:
        boot = what.boot
        if boot == self.boot:
            # Said twice. Only renewals make a lease longer.
            return self, ()
        if self.hold is not Hold.NONE:
            return self._no(f"boot {boot.id}: a rank is {self.hold} here; stop it first")
        if boot.generation <= self.highest_generation:
            return self._no(
                f"boot {boot.id} has generation {boot.generation}, but this node has seen {self.highest_generation}"
            )
        expires_at_s = what.stamp.at_s + ttl_s
        if what.stamp.life != self.life or what.stamp.at_s > now_s or expires_at_s <= now_s:
            return self._no(f"the grant of boot {boot.id} answers to a status that is too old")
        book = replace(self, highest_generation=boot.generation, boot=boot, expires_at_s=expires_at_s)
        return replace(book, spent=False, confirmed=True), (Save(),)

    def _renew(self, what: Renew, now_s: float, ttl_s: float) -> tuple[LeaseBook, tuple[Action, ...]]:
        if self.boot is None or self.boot.id != what.boot_id:
            return self._no(f"boot {what.boot_id} is not this node's boot ({self.boot.id if self.boot else 'none'})")
        if now_s >= self.expires_at_s:
            return self._no(f"the lease of boot {what.boot_id} ran out {now_s - self.expires_at_s:.1f} s ago")
        if what.stamp.life != self.life or what.stamp.at_s > now_s:
            return self._no(f"the renewal of boot {what.boot_id} is meant for a supervisor before this one")
        expires_at_s = max(self.expires_at_s, what.stamp.at_s + ttl_s)
        return replace(self, expires_at_s=expires_at_s, confirmed=True), ()

    def _start(self, what: Start, now_s: float) -> tuple[LeaseBook, tuple[Action, ...]]:
        boot = self.live(now_s)
        if boot is None or boot.id != what.boot_id:
            return self._no(f"boot {what.boot_id} has no live lease here")
        if self.hold is Hold.RUNNING:
            return self, ()
        if self.hold is not Hold.NONE or self.spent:
            return self._no(f"the rank of boot {what.boot_id} has ended here already")
        return replace(self, hold=Hold.RUNNING, spent=True), (StartRank(boot),)

    def _stop(self, what: Stop) -> tuple[LeaseBook, tuple[Action, ...]]:
        if self.boot is not None and self.boot.generation > what.generation:
            return self._no(
                f"a stop up to generation {what.generation} came, but boot {self.boot.id} is {self.boot.generation}: "
                "another head started it"
            )
        return replace(self, highest_generation=max(self.highest_generation, what.generation))._without(what.why)

    def _without(self, why: str) -> tuple[LeaseBook, tuple[Action, ...]]:
        """The book without a lease."""
        book = replace(self, boot=None, expires_at_s=0.0, confirmed=False)
        if self.hold is Hold.NONE:
            return book, (Save(),)
        hold = Hold.UNKNOWN if self.hold is Hold.UNKNOWN else Hold.STOPPING
        return replace(book, hold=hold), (Save(), StopRank(why))

    def _looked(self, what: Looked, now_s: float, ttl_s: float) -> tuple[LeaseBook, tuple[Action, ...]]:
        if self.hold is not Hold.UNKNOWN:
            return self, ()
        if what.boot_id is None:
            return replace(self, hold=Hold.NONE)._without("")
        if self.boot is None or self.boot.id != what.boot_id:
            return replace(self, hold=Hold.STOPPING)._without(f"a rank of boot {what.boot_id} runs without a lease")
        return replace(self, hold=Hold.RUNNING, spent=True, expires_at_s=now_s + ttl_s, confirmed=False), ()

    def _no(self, why: str) -> tuple[LeaseBook, tuple[Action, ...]]:
        return self, (Refuse(why),)


@dataclass(frozen=True, slots=True)
class RankLease:
    """The lease as the rank's own process keeps it: it outlives a supervisor that is gone or frozen, but not the
    lease."""

    until_s: float

    def heard(self, asked_at_s: float, left_s: float | None) -> RankLease:
        """The supervisor answered; None when it only took the lease over and the head has not spoken to it yet."""
        return self if left_s is None else RankLease(asked_at_s + left_s)

    def may_run(self, now_s: float) -> bool:
        return now_s < self.until_s
