"""One boot, from checks to serving: every node passes, every worker waits at the rendezvous, then the head."""

from __future__ import annotations

import logging

from ..errors import Refused, Stage
from ..fabric.check import FabricReport, check_fabric
from ..journal import Event, event
from ..rank.kv_budget import unequal
from .crew import LOST_GRACE_S, Crew
from .judge import Seen
from .samebits import differences, mixed

PACKING_TIMEOUT_S = 4 * 3600
START_TIMEOUT_S = 3600
BOOT_TIMEOUT_S = 24 * 3600
"""Last resorts: what ends a boot that stands still are the stall timers of each phase."""


async def boot_in_order(crew: Crew, reported: list[FabricReport]) -> None:
    """Bring every rank up. `reported` gets what the cables looked like. Raises Dsv41Error; what was started is then
    still there."""
    record = crew.record
    # A process that waits to be admitted is what asked for this boot (systemctl start dsv41-rank@0).
    await crew.stop_all("a new boot begins", LOST_GRACE_S, keep_waiting=True)
    boot = crew.open_boot()
    event(Event.BOOT_STARTED, f"boot {boot.id} (generation {boot.generation}) starts", stage=Stage.RANK)
    record.note("checks")
    await crew.give_due()
    await crew.until(lambda seen: seen.all_prepared(boot.id), PACKING_TIMEOUT_S, "the checks of every node")
    _refuse_mixture(crew, "same")
    reported.append(await _check_cables(crew))
    crew.sequence = crew.sequence.admit()
    record.note("workers start")
    await crew.give_due()
    workers = crew.sequence.nodes[1:]
    await crew.until(
        lambda seen: all(seen.waits_at_rendezvous(w) for w in workers), START_TIMEOUT_S, "the workers to wait"
    )
    record.note("head starts")
    if workers:
        await crew.give_due()
    await crew.until(Seen.all_ready, BOOT_TIMEOUT_S, "every rank to be ready")
    _refuse_mixture(crew, "same_running")
    record.note("serving")


def _refuse_mixture(crew: Crew, facts: str) -> None:
    """Raises Refused when the ranks differ in what they must have in common; notes what is tolerated."""
    statuses = {n: m.status for n, m in crew.members.items() if m.status is not None}
    tolerated = crew.settings.supervisor.tolerated_differences
    refusals = differences(statuses, facts=facts, tolerated=tolerated)
    notes = [f"tolerated: the nodes differ in {n}" for n in mixed(statuses, facts) if n in tolerated]
    if facts == "same_running":
        unlike, notes = unequal(statuses)
        refusals += unlike
    for note in notes:
        crew.record.note(note)
    if refusals:
        raise Refused(refusals)


async def _check_cables(crew: Crew) -> FabricReport:
    """Each node passed alone; now both ends of every cable together. Raises Refused."""
    facts = await crew.each(crew.members, lambda m: m.fabric())
    report = check_fabric(crew.settings, facts, crew.record.override)
    for finding in report.overridden:
        event(Event.CHECK_OVERRIDDEN, f"overridden: {finding}", logging.WARNING, stage=Stage.FABRIC)
        crew.record.decide(f"check {finding.check} was overridden: {finding.node or 'fleet'}: {finding.what}")
    if report.refusals:
        raise Refused(report.refusals)
    return report
