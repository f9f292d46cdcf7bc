"""The fabric of this node over a boot: judged by stage 2, read again for the launch, watched while the rank runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..atomic import read_json, write_json
from ..deadline import Deadline
from ..errors import Stage
from ..journal import log
from ..settings import Settings
from .bounded import BoundedReads
from .check import FabricReport, check_fabric
from .facts import NodeFacts
from .read import read_facts
from .roots import Roots
from .ruleset import Ruleset, nft
from .warm import warm_neighbours
from .watch import FabricWatch, look, view

FACTS_TIMEOUT_S = 30
LAUNCH_TIMEOUT_S = 10


class NodeFabric:
    """Lives in one event loop. `override` are the checks allowed for this boot beside those of the settings."""

    def __init__(self, settings: Settings, node: str, changed: Callable[[], None], roots: Roots | None = None,
                 ruleset: Ruleset = nft) -> None:  # fmt: skip
        self.ruleset = ruleset
        self._settings = settings
        self._node = node
        self._roots = roots or Roots()
        self._reads = BoundedReads()
        self.override: tuple[str, ...] = ()
        self.report: FabricReport | None = None
        self.facts: NodeFacts | None = None
        self.watch = FabricWatch(settings, node, changed, self._roots)
        self._launched_path = settings.state_dir(node) / "fabric.json"

    async def check(self) -> FabricReport:
        """Stage 2: warm the neighbours up, read everything, judge it. Raises DeadlineExceeded."""
        deadline = Deadline.after(
            FACTS_TIMEOUT_S, f"the facts of {self._node}'s fabric", stage=Stage.FABRIC,
            hint=f"Run dsv41 doctor on {self._node}: it says which reader hangs.",
        )  # fmt: skip
        await deadline.wait(warm_neighbours(self._settings, self._node))
        self.facts = await deadline.wait(self._read_facts())
        self.report = check_fabric(self._settings, {self._node: self.facts}, self.override)
        for finding in self.report.overridden:
            log.warning("overridden: %s", finding)
        return self.report

    async def read(self) -> NodeFacts:
        """What stage 2 saw in this boot; read now when it did not run yet."""
        if self.facts is None:
            return await self._read_facts()
        return self.facts

    async def _read_facts(self) -> NodeFacts:
        return await read_facts(self._settings, self._node, self._roots, reads=self._reads, ruleset=self.ruleset)

    async def for_launch(self) -> NodeFacts:
        """Links and GID tables as they are now: an index may have moved since stage 2."""
        deadline = Deadline.after(LAUNCH_TIMEOUT_S, f"the GID tables of {self._node}", stage=Stage.FABRIC)
        return await deadline.wait(look(self._settings, self._node, self._roots, self._reads))

    def launched(self, boot_id: str, facts: NodeFacts) -> None:
        """A rank was started with these facts: from now on they are what the rails are compared with."""
        self.watch.start(facts)
        shown = view(self._settings, self._node, facts)
        try:
            write_json(
                self._launched_path,
                {"boot": boot_id, "view": [[rail, what, value] for (rail, what), value in shown.items()]},
            )
        except OSError as error:
            log.warning("cannot write %s: %s", self._launched_path, error.strerror)

    async def taken_up(self, boot_id: str) -> None:
        """A rank outlived our supervisor: compare with its launch, or with now when nobody wrote that down. Never
        raises: a fabric that cannot be read is no reason to stop a rank that serves."""
        raw = read_json(self._launched_path)
        try:
            if raw is not None and raw["boot"] == boot_id:
                self.watch.start_from({(str(r), str(w)): str(v) for r, w, v in raw["view"]})
                return
        except (KeyError, TypeError, ValueError):
            log.warning("%s has another shape; starting without it", self._launched_path)
        try:
            self.watch.start(await self.for_launch())
        except Exception as error:
            log.warning("the rails are not watched until the next launch: %s", error)

    def stopped(self) -> None:
        """The rank is gone."""
        self.watch.stop()

    def to_json(self) -> dict[str, Any]:
        """For status: what was found before the launch, what was allowed, what changed since."""
        report = self.report
        return self.watch.to_json() | {
            "override": list(self.override),
            "findings": [f.to_json() for f in report.told] if report is not None else [],
            "read_s_ago": round(time.time() - self.facts.at_s, 1) if self.facts is not None else None,
        }
