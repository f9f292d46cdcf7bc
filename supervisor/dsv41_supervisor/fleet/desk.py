"""The desk where everything notable arrives: it tells people once, and keeps a bundle of every failure.

Runs in the head's supervisor for the whole fleet, and in a worker's for what that worker alone can say. Nothing in the
fleet's own work waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from .. import __version__
from ..errors import Dsv41Error
from ..incident import bundle
from ..incident.evidence import collect
from ..incident.redact import Redactor, secrets_of
from ..journal import Event, event, log
from ..node import NodeAgent
from ..settings import Settings
from .alerts import Alerts

COLLECT_S = 20.0
SAME_AGAIN_S = 5.0
TOLD_BEFORE_S = 30.0
LOOK_S = 2.0
WORTH_A_BUNDLE = {"gpu-no-memory", "kernel-oom-kill", "head-silent"}
"""Notices of a node that nothing else makes a bundle of."""


class Witness(Protocol):
    """A node that can be asked; `fleet.members` has two kinds."""

    name: str

    @property
    def status(self) -> dict[str, Any] | None: ...

    async def evidence(self) -> dict[str, Any]: ...


class Itself:
    """The one witness of a worker's own desk."""

    def __init__(self, agent: NodeAgent) -> None:
        self.name = agent.node
        self._agent = agent

    @property
    def status(self) -> dict[str, Any] | None:
        return self._agent.status()

    async def evidence(self) -> dict[str, Any]:
        return await collect(self._agent)


class Desk:
    """See the module's docstring. Lives in one event loop."""

    def __init__(
        self, settings: Settings, node: str, witnesses: Mapping[str, Witness], about: Callable[[], dict[str, Any]]
    ) -> None:
        self._settings = settings
        self._node = node
        self._witnesses = witnesses
        self._about = about
        self.alerts = Alerts(settings, node)
        self.directory: Path = settings.state_dir(node) / "incidents"
        self.last_name: str | None = None
        self.last_failure: str | None = None
        self._recorded: dict[str, float] = {}
        self._working: set[asyncio.Task[Any]] = set()
        self._seen: dict[str, int] = {}
        self._writing = asyncio.Lock()
        self._began_at = time.time()

    async def run(self, *, pick_up: bool) -> None:
        """Deliver alerts until cancelled; with `pick_up` (the head) also what the nodes have to tell."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.alerts.run())
            if pick_up:
                group.create_task(self._pick_up())

    def tell(self, kind: str, sentence: str, *, node: str | None = None, incident: bool = False) -> None:
        """Something happened; with `incident` a bundle is made of it, and the alert names the bundle."""
        name = self.incident(kind, sentence) if incident else None
        self.alerts.tell(kind, sentence, node=node, incident=name)

    def incident(self, kind: str, why: str) -> str | None:
        """Start a bundle now; returns its name, or None when the same was kept a moment ago. Never waits or raises."""
        now = time.monotonic()
        if now - self._recorded.get(kind, -1e9) < SAME_AGAIN_S:
            return None
        self._recorded[kind] = now
        return self._begin(kind, why)[0]

    async def make(self, kind: str, why: str) -> str:
        """A bundle that is written when this returns. Raises OSError when it cannot be."""
        name, task = self._begin(kind, why)
        await asyncio.shield(task)
        if self.last_failure is not None and name in self.last_failure:
            raise OSError(self.last_failure)
        return name

    def status(self) -> dict[str, Any]:
        """For `dsv41 status`."""
        return {
            "last_incident": self.last_name, "incident_failure": self.last_failure,
            "alert_failure": self.alerts.last_failure, "alerts_delivered": self.alerts.n_delivered,
        }  # fmt: skip

    # -- private -----------------------------------------------------------------------------------------------------

    def _begin(self, kind: str, why: str) -> tuple[str, asyncio.Task[None]]:
        # What will be overwritten by the next boot is copied now; the nodes are asked afterwards.
        at, about = time.time(), self._about()
        name = bundle.bundle_name(kind, at, str((about.get("boot") or {}).get("id") or "") or None)
        statuses = {n: w.status for n, w in self._witnesses.items()}
        task = asyncio.get_running_loop().create_task(self._keep(name, kind, why, at, about, statuses))
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return name, task

    async def _keep(
        self, name: str, kind: str, why: str, at: float, about: dict[str, Any], statuses: dict[str, Any]
    ) -> None:
        try:
            parts = await self._parts(kind, why, at, about, statuses)
            limits = self._settings.incidents
            async with self._writing:
                await asyncio.to_thread(
                    bundle.write, self.directory, name, parts, limits.max_bytes, limits.max_bundles
                )
            self.last_name = name
            event(Event.INCIDENT_KEPT, f"incident kept: {name}")
        except OSError as error:
            self.last_failure = f"the bundle {name} could not be written: {error.strerror or error}"
            event(Event.NOT_KEPT_OR_TOLD, self.last_failure, logging.ERROR)
        except Exception:
            # A bundle that fails must never take the recovery with it.
            self.last_failure = f"the bundle {name} could not be made: a bug; see the supervisor's log"
            log.exception("%s", self.last_failure)

    async def _parts(
        self, kind: str, why: str, at: float, about: dict[str, Any], statuses: dict[str, Any]
    ) -> dict[str, str]:
        answers = await asyncio.gather(*(self._ask(witness) for witness in self._witnesses.values()))
        redactor = Redactor(await asyncio.to_thread(secrets_of, self._settings, self._node))
        failed: dict[str, str] = {}
        parts: dict[str, str] = {}
        for node, answer in zip(self._witnesses, answers, strict=True):
            parts |= {f"{node}/{part}": str(text) for part, text in answer.get("parts", {}).items()}
            failed |= {f"{node}/{part}": str(reason) for part, reason in answer.get("failed", {}).items()}
            # As it was when it happened; the node itself may have gone on, or be gone.
            parts[f"{node}/status-then.json"] = bundle.as_text(statuses[node])
        timeline = about.pop("timeline", [])
        decisions = await asyncio.to_thread(self._audit_lines)
        first = {
            "what": kind, "why": why, "at": at, "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)),
            "fleet": self._settings.fleet.name, "written_by": self._node, "supervisor_version": __version__,
            "settings_hash": self._settings.hash, "failed_parts": failed, **about,
        }  # fmt: skip
        fleet = {
            "incident.json": bundle.as_text(redactor.value(first)),
            "timeline.txt": "\n".join(
                f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(entry['at']))} {entry['what']}"
                for entry in timeline
            ),
            "decisions.txt": decisions,
            "settings.json": bundle.as_text(redactor.value(self._settings.model_dump(mode="json"))),
            "same-bits.json": bundle.as_text({n: (s or {}).get("same") for n, s in statuses.items()}),
        }
        everything = fleet | parts
        return await asyncio.to_thread(lambda: {name: redactor.text(text) for name, text in everything.items()})

    async def _ask(self, witness: Witness) -> dict[str, Any]:
        try:
            async with asyncio.timeout(COLLECT_S):
                return await witness.evidence()
        except (Dsv41Error, TimeoutError, OSError) as error:
            return {"failed": {"everything": str(error) or type(error).__name__}}

    def _audit_lines(self) -> str:
        try:
            return "\n".join((self.directory.parent / "audit.log").read_text(errors="replace").splitlines()[-500:])
        except OSError as error:
            return f"audit.log: {error.strerror}"

    async def _pick_up(self) -> None:
        """Notices wait in the nodes' statuses."""
        while True:
            for name, witness in self._witnesses.items():
                status = witness.status
                if status is None:
                    continue
                notices = status.get("notices", [])
                seen = self._seen.get(name, 0)
                for notice in notices:
                    # A supervisor that was restarted has told what is older.
                    if notice["id"] > seen and notice["at"] > self._began_at - TOLD_BEFORE_S:
                        self._notice(name, notice)
                self._seen[name] = max([seen, *(n["id"] for n in notices)])
            await asyncio.sleep(LOOK_S)

    def _notice(self, node: str, notice: Mapping[str, Any]) -> None:
        kind, sentence = str(notice["kind"]), f"{node}: {notice['sentence']}"
        self.tell(kind, sentence, node=node, incident=kind in WORTH_A_BUNDLE)
