"""One process's way from the plan to a proven state: order → fit → hook → verify → report."""

from __future__ import annotations

import atexit
import importlib
import logging
import multiprocessing
import os
import sys
from pathlib import Path

from .adapter import EX_REFUSED, Adapter, AdapterRefused, AdapterSettings, Reason, Role, State
from .fingerprint import EngineSource, fit
from .hooks import arm_hooks
from .plan import RankPlan, RowsPlan, read_plan
from .registry import order, validate_settings
from .report import CounterPage, Reporter, read_reports

log = logging.getLogger(__name__)

_ENTRY_FUNCTIONS = {
    "run_scheduler_process": Role.SCHEDULER,
    "run_detokenizer_process": Role.DETOKENIZER,
}


def role_of_this_process() -> Role:
    """Which of the engine's processes this is.

    By the function that called SGLang's plugin loader; titles and names of processes are set only later. A
    process that multiprocessing did not start is the launcher. Source: sglang 0.5.23, managers/scheduler.py,
    managers/detokenizer_manager.py, launch_server.py.
    """
    frame = sys._getframe()
    while frame is not None:
        role = _ENTRY_FUNCTIONS.get(frame.f_code.co_name)
        if role is not None and frame.f_globals.get("__name__", "").startswith("sglang."):
            return role
        frame = frame.f_back
    return Role.LAUNCHER if multiprocessing.parent_process() is None else Role.OTHER


class AdapterRun:
    """What one armed adapter has while the engine runs: its settings, the plan, and how it reports."""

    def __init__(self, adapter: Adapter, settings: AdapterSettings, plan: RankPlan, reporter: Reporter) -> None:
        self.adapter = adapter
        self.settings = settings
        self.plan = plan
        self._reporter = reporter
        self._state = State.ARMED

    @property
    def role(self) -> Role:
        """Which of the engine's processes this is: an adapter may hook other targets in each."""
        return self._reporter.role

    @property
    def rows(self) -> RowsPlan:
        if self.plan.rows is None:
            raise self.refuse("it reads packed rows, but the plan has none.", "rows")
        return self.plan.rows

    def counters(self, *names: str) -> CounterPage:
        return self._reporter.counters(self.adapter.name, names)

    def engaged(self) -> None:
        """Note the first call; cheap to call again."""
        if self._state is not State.ENGAGED:
            self._state = State.ENGAGED
            self._reporter.set(self.adapter.name, State.ENGAGED)
            self._reporter.write()

    def note(self, reason: str) -> None:
        """Put a sentence beside the state, for whoever reads the report after this process is gone."""
        self._reporter.set(self.adapter.name, self._state, reason=reason)
        self._reporter.write()

    def refuse(self, what: str, kind: str = "hook") -> AdapterRefused:
        """Report the refusal; the caller raises what this returns, and the process ends with status 78."""
        refusal = AdapterRefused([Reason(self.adapter.name, what, kind)])  # type: ignore[arg-type]
        _report_refusal(self._reporter, refusal, [self.adapter.name])
        return refusal


def arm(plan_path: Path, role: Role) -> None:
    """All or nothing: every adapter asked for is in place in this process, or AdapterRefused."""
    plan = read_plan(plan_path)
    reporter = Reporter(plan.report_dir, boot=plan.boot, rank=plan.rank, role=role)
    try:
        _arm(plan, role, reporter)
    except AdapterRefused as refusal:
        _report_refusal(reporter, refusal, plan.adapters)
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {str(error).rstrip('.')}."
        refusal = AdapterRefused(Reason(name, what, "hook") for name in plan.adapters or ["plugin"])
        _report_refusal(reporter, refusal, plan.adapters)
        raise refusal from error
    if role is Role.LAUNCHER:
        atexit.register(_end_as_refused, plan)


def _arm(plan: RankPlan, role: Role, reporter: Reporter) -> None:
    adapters = order(plan.adapters, plan.world_size)
    runs = [
        AdapterRun(adapter, validate_settings(adapter, plan.adapters[adapter.name]), plan, reporter)
        for adapter in adapters
    ]
    if adapters and (reasons := fit(adapters, EngineSource.of_this_process())):
        raise AdapterRefused(reasons)
    for run in runs:
        if run.adapter.needs_rows and plan.rows is None:
            raise run.refuse("it reads packed rows, but the plan has none.", "rows")
    here = [run for run in runs if role in run.adapter.processes]
    for run in runs:
        reporter.set(run.adapter.name, State.OFF, reason=f"not used in a {role} process")
    if here:
        arm_hooks([(run.adapter, _hooks_of(run)) for run in here], role)
    for run in here:
        hooked = [target.path for target in run.adapter.targets if target.hooked_in(role)]
        reporter.set(run.adapter.name, State.ARMED, targets=hooked)
    reporter.write()
    log.info("dsv41 adapters armed in this %s: %s", role, ", ".join(r.adapter.name for r in here) or "none")


def _hooks_of(run: AdapterRun) -> dict[str, object]:
    """`<name>/install.py` imports torch and the engine, so only processes that hook it load it."""
    install = importlib.import_module(f"{__package__}.{run.adapter.name}.install")
    return install.hooks(run)


def _report_refusal(reporter: Reporter, refusal: AdapterRefused, asked: object) -> None:
    by_name: dict[str, list[str]] = {name: [] for name in asked}  # type: ignore[attr-defined]
    for reason in refusal.reasons:
        by_name.setdefault(reason.adapter, []).append(reason.what)
    for name, whats in by_name.items():
        text = " ".join(whats) or f"not armed, because another adapter was refused ({refusal.reasons[0].adapter})."
        reporter.set(name, State.REFUSED, reason=text)
    try:
        reporter.write()
    except OSError as error:
        print(f"engine: no report could be written ({error})", file=sys.stderr)
    print(f"engine: {refusal}", file=sys.stderr, flush=True)


def _end_as_refused(plan: RankPlan) -> None:
    """End the launcher with 78 when a process below it refused; SGLang ends it with 1, which is restarted."""
    refused = any(
        adapter.state is State.REFUSED
        for report in read_reports(plan.report_dir, plan.boot)
        for adapter in report.adapters.values()
    )
    if refused:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EX_REFUSED)
