"""After a restart of the head's supervisor: keep a boot that is healthy and the same, instead of restarting it.

The same is: every rank's unit runs in that boot, under its lease, ready, and what must be equal on all nodes (closure,
settings, …) is equal.
"""

from __future__ import annotations

from ..deadline import Deadline
from ..rank.plan import Boot
from .crew import PEERS_TIMEOUT_S, Crew
from .samebits import differences


async def adopt(crew: Crew, boot: Boot) -> str | None:
    """Take a boot up again. None when it serves; else why it cannot be kept."""
    crew.take_up(boot)
    deadline = Deadline.after(PEERS_TIMEOUT_S + crew.settings.engine.stall.warmup_s, "the ranks of the boot before")
    heard_by = Deadline.after(PEERS_TIMEOUT_S, "every node's supervisor")
    while True:
        look = crew.look()
        statuses = look.statuses
        heard = {name: status for name, status in statuses.items() if status is not None}
        if (newer := crew.own_newer(look)) is not None:
            # Begun here and not in the record, which could not be written or was put back: that one is meant.
            crew.record.note(f"boot {newer.id} was begun by this head and is newer than its record")
            boot = newer
            crew.take_up(boot)
            continue
        if (other := crew.other_head(look)) is not None:
            return other
        for name, status in heard.items():
            # A node that has just started looks for its rank first.
            if status["hold"] != "unknown" and (status["boot"] or {}).get("id") != boot.id:
                return f"{name} does not hold its lease any more"
            if status["rank"]["state"] in ("failed", "stopped"):
                return f"rank {status['rank_number']} on {name} is {status['rank']['sentence']}"
            if status["rank"]["state"] == "absent" and status["hold"] == "none":
                return f"rank {status['rank_number']} on {name} does not run"
        # A supervisor that has just started is still reading libraries and file lists: not known yet is no difference.
        if len(heard) == len(statuses) and all(status["same_known"] for status in heard.values()):
            if different := differences(heard, tolerated=crew.settings.supervisor.tolerated_differences):
                return different[0].what
            if all(status["rank"]["state"] == "ready" for status in heard.values()):
                return None
        if crew.silent and heard_by.expired:
            return f"the supervisor of {', '.join(crew.silent)} is silent"
        if deadline.expired:
            return "it was not ready in time"
        seen = crew.changes.version
        await crew.changes.newer_than(seen, 0.5)
