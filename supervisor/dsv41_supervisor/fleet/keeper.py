"""One node's lease over time: gives the pure `LeaseBook` the clock, writes it down, and says no in words."""

from __future__ import annotations

import secrets
import time

from ..atomic import read_state, set_aside, write_json
from ..journal import log
from ..rank.plan import Boot
from ..settings import Settings
from .lease import Action, Happening, LeaseBook, Refuse, Save, StaleBoot, Stamp

STATE_FORMAT = 1


class LeaseKeeper:
    """`book` is what is known now; `happens` is the only way to change it."""

    def __init__(self, settings: Settings, node: str) -> None:
        self._path = settings.state_dir(node) / "node.json"
        self._ours = {"format": STATE_FORMAT, "fleet": settings.fleet.name, "node": node}
        self._ttl_s = settings.supervisor.lease_ttl_s
        self.unwritten: str | None = None
        """Why what is known could not be written down; None again once it could."""
        self.book = self._restored(secrets.token_hex(4))

    def happens(self, what: Happening) -> tuple[Action, ...]:
        """Take something that happened; what is left to do comes back. Raises StaleBoot when it is refused."""
        book, actions = self.book.step(what, time.monotonic(), self._ttl_s)
        self.book = book
        left: list[Action] = []
        for action in actions:
            if isinstance(action, Refuse):
                raise StaleBoot(action.why)
            if isinstance(action, Save):
                self._save()
            else:
                left.append(action)
        return tuple(left)

    def stamp(self) -> Stamp:
        return self.book.stamp(time.monotonic())

    def left_for_rank_s(self) -> float | None:
        """What the rank's process may count on; None while the head has not spoken to this supervisor yet."""
        return self.book.left_s(time.monotonic()) if self.book.confirmed else None

    def _save(self) -> None:
        boot = self.book.boot
        known = {"highest_generation": self.book.highest_generation, "boot": boot.to_json() if boot else None}
        try:
            write_json(self._path, {**self._ours, **known})
        except OSError as error:
            # Stopping a fleet for this would be worse: what is lost with it is guarded by the stamps (lease.py).
            if self.unwritten is None:
                log.warning("cannot write %s: %s", self._path, error.strerror)
            self.unwritten = f"cannot write {self._path}: {error.strerror}"
        else:
            self.unwritten = None

    def _restored(self, life: str) -> LeaseBook:
        """What the supervisor before this one knew."""
        raw = read_state(self._path, **self._ours)
        if raw is None:
            return LeaseBook(life)
        try:
            boot = Boot.from_json(raw["boot"]) if raw.get("boot") else None
            return LeaseBook(life, int(raw["highest_generation"]), boot)
        except (KeyError, TypeError, ValueError, AttributeError):
            set_aside(self._path, "has another shape")
            return LeaseBook(life)
