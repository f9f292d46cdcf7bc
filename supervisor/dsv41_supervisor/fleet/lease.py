"""Which boot of the fleet this is, and until when. Pure: the clock is an argument.

One boot of the fleet is one lease, granted and renewed by the head. Generations only grow, and a node remembers the
highest it has seen, so a delayed message of an older boot can neither start nor keep a rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..rank.plan import Boot


class StaleBoot(ValueError):
    """A message of a boot that is over; the text says which boot is known and which was named."""


@dataclass(frozen=True, slots=True)
class LeaseBook:
    """What one node knows about leases. Times are seconds on the node's own monotonic clock."""

    highest_generation: int = 0
    boot: Boot | None = None
    expires_at_s: float = 0.0

    def grant(self, boot: Boot, now_s: float, ttl_s: float) -> LeaseBook:
        """Take a new boot's lease. Raises StaleBoot when a boot as new or newer is known."""
        if boot == self.boot:
            return self.renew(boot.id, now_s, ttl_s)
        if boot.generation <= self.highest_generation:
            raise StaleBoot(
                f"boot {boot.id} has generation {boot.generation}, but this node has seen {self.highest_generation}"
            )
        return LeaseBook(boot.generation, boot, now_s + ttl_s)

    def renew(self, boot_id: str, now_s: float, ttl_s: float) -> LeaseBook:
        """Extend the running boot's lease; it never gets shorter. Raises StaleBoot for any other boot."""
        if self.boot is None or self.boot.id != boot_id:
            raise StaleBoot(f"boot {boot_id} is not this node's boot ({self.boot.id if self.boot else 'none'})")
        if now_s >= self.expires_at_s:
            raise StaleBoot(f"the lease of boot {boot_id} ran out {now_s - self.expires_at_s:.1f} s ago")
        return replace(self, expires_at_s=max(self.expires_at_s, now_s + ttl_s))

    def drop(self) -> LeaseBook:
        """End the lease; its generation stays known."""
        return replace(self, boot=None, expires_at_s=0.0)

    def left_s(self, now_s: float) -> float:
        """Seconds until the lease ends; 0 without one."""
        return max(0.0, self.expires_at_s - now_s) if self.boot is not None else 0.0

    def live(self, now_s: float) -> Boot | None:
        """The boot whose lease has not run out."""
        return self.boot if self.boot is not None and now_s < self.expires_at_s else None
