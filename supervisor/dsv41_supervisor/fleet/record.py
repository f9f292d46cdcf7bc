"""What the head remembers over a restart of its supervisor, and what it writes down for people."""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..atomic import read_state, set_aside, write_json
from ..errors import Dsv41Error, Stage
from ..journal import log
from ..rank.plan import Boot
from .decisions import Decisions

STATE_FORMAT = 1
N_TIMELINE = 200
MACHINE_BOOT = Path("/proc/sys/kernel/random/boot_id")
FIRST_BOOT_GUESS_S = 60.0
"""Guess; used for Retry-After until a boot was measured."""
SPARE_BYTES = 64 << 10
"""Kept free for the record on a drive that fills up; the record itself has a few hundred bytes."""


def now_s() -> float:
    """Seconds on a clock that nobody sets and that outlives this process: since the machine's boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def machine_boot() -> str:
    """Which boot of the machine that clock counts from."""
    return MACHINE_BOOT.read_text().strip()


@dataclass(slots=True)
class FleetRecord:
    """State on disk (`fleet.json`), the audit log beside it, and the timeline that `dsv41 status` shows."""

    directory: Path
    wanted_up: bool = False
    boot: Boot | None = None
    generation: int = 0
    recoveries: list[float] = field(default_factory=list)
    """When each recovery within the window began, on the clock of `now_s`."""
    last_boot_s: float = FIRST_BOOT_GUESS_S
    timeline: list[dict[str, Any]] = field(default_factory=list)
    served: bool = False
    """The fleet has served since it was asked to be up: only then is a lost boot worth recovering."""
    paused_by: str | None = None
    """Who paused recovery; None while it is not paused."""
    held: str | None = None
    """Why the fleet stays down although it is wanted up, until somebody says otherwise."""
    held_until: str | None = None
    """`up`, or `resume`."""
    override: tuple[str, ...] = ()
    """Checks that whoever asked for this fleet allowed to refuse in vain; recoveries keep them."""
    unwritten: str | None = None
    """Why the file is older than this record; None while it is not. A restarted supervisor would read the file."""
    set_aside: str | None = None
    """What people must know since the record before was unreadable; until the next boot, over restarts too."""

    @classmethod
    def load(cls, directory: Path) -> FleetRecord:
        """The record in a directory; a new one when there is none, or none that can be read."""
        record = cls(directory)
        was_there = os.path.lexists(record._path)
        raw = read_state(record._path, format=STATE_FORMAT)
        if raw is None:
            if was_there:
                record._begin_anew()
            return record
        try:
            return cls(
                directory,
                wanted_up=raw["wanted"] == "up",
                boot=Boot.from_json(raw["boot"]) if raw.get("boot") else None,
                generation=int(raw["generation"]),
                # After a reboot of this machine nobody knows how long ago they were: as good as now.
                recoveries=[float(t) if raw.get("machine_boot") == machine_boot() else now_s()
                            for t in raw.get("recoveries", ())],
                last_boot_s=float(raw.get("last_boot_s", FIRST_BOOT_GUESS_S)),
                served=bool(raw.get("served", False)),
                paused_by=raw.get("paused_by"),
                held=raw.get("held"),
                held_until=raw.get("held_until"),
                override=tuple(map(str, raw.get("override", ()))),
                set_aside=raw.get("set_aside"),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            set_aside(record._path, "has another shape")
            record._begin_anew()
            return record

    def _begin_anew(self) -> None:
        """Without this, the fleet would be down above ranks that run, and nobody would see why."""
        self.set_aside = (
            f"the fleet's record was unreadable and was set aside ({self._path}.unreadable); ranks of an earlier boot "
            "may run until their lease ends; dsv41 up starts cleanly"
        )
        self.decide("the fleet is taken for down", self.set_aside)
        self.save()

    def save(self) -> None:
        """Write it down. What cannot be written stops nothing: `unwritten` says so until a later try succeeds."""
        if self.boot is not None:
            # Whatever an earlier boot left was stopped before this one began.
            self.set_aside = None
        try:
            self._write()
        except OSError as error:
            unwritten = f"cannot write {self._path}: {error.strerror}"
            if unwritten != self.unwritten:
                log.warning("%s", unwritten)
            self.unwritten = unwritten
        else:
            if self.unwritten is not None:
                log.info("%s is written again", self._path)
            self.unwritten = None

    @contextlib.contextmanager
    def kept(self, what: str) -> Iterator[None]:
        """What is changed within is on disk at the end, or not changed. Raises Dsv41Error, naming `what`: it is only
        worth something if a restarted supervisor still knows it."""
        before = {f.name: copy.copy(getattr(self, f.name)) for f in fields(self) if f.name != "timeline"}
        yield
        self.save()
        if (unwritten := self.unwritten) is not None:
            for name, value in before.items():
                setattr(self, name, value)
            raise Dsv41Error(
                f"{what}: {unwritten}. After a restart of the supervisor nobody would know of it.",
                stage=Stage.RANK, transient=True,
                hint=f"Free some space (df -h {self.directory}), or see who may write there, then try again.",
            )  # fmt: skip

    def _write(self) -> None:
        content = {
            "format": STATE_FORMAT,
            "wanted": "up" if self.wanted_up else "down",
            "generation": self.generation,
            "boot": self.boot.to_json() if self.boot else None,
            "recoveries": self.recoveries,
            "machine_boot": machine_boot(),
            "last_boot_s": self.last_boot_s,
            "served": self.served,
            "paused_by": self.paused_by,
            "held": self.held,
            "held_until": self.held_until,
            "override": list(self.override),
            "set_aside": self.set_aside,
        }
        try:
            write_json(self._path, content)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._spare.exists():
                raise
            # Others have filled the drive. What was kept for this is taken, and kept again afterwards.
            self._spare.unlink()
            write_json(self._path, content)
        self._keep_spare()

    def _keep_spare(self) -> None:
        if self._spare.exists():
            return
        try:
            fd = os.open(self._spare, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                os.posix_fallocate(fd, 0, SPARE_BYTES)
            finally:
                os.close(fd)
        except OSError:
            # Half a spare would be taken for one; the next write tries again.
            self._spare.unlink(missing_ok=True)

    def note(self, what: str) -> None:
        """One entry of the timeline."""
        self.timeline.append({"at": round(time.time(), 3), "what": what})
        del self.timeline[:-N_TIMELINE]

    def decide(self, what: str, why: str | None = None, **about: Any) -> None:
        """One line of the audit log: a decision with its reason."""
        self.note(f"{what}: {why}" if why else what)
        boot = self.boot.id if self.boot is not None else None
        Decisions(self.directory).append(what, why, boot=boot, generation=self.generation, **about)

    @property
    def _path(self) -> Path:
        return self.directory / "fleet.json"

    @property
    def _spare(self) -> Path:
        return self.directory / "fleet.json.spare"
