"""Asks a watch after each step of a request, in the schedulers; `answers.py` is for the launcher."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..adapter import Role
from . import answers
from .spec import Mode
from .watch import RequestWatch

if TYPE_CHECKING:
    from ..activation import AdapterRun
    from .spec import LoopAbortSettings

log = logging.getLogger(__name__)


def hooks(run: AdapterRun) -> dict[str, object]:
    """Hook by target, as `spec.py` declares them for this kind of process."""
    if run.role is Role.LAUNCHER:
        return answers.hooks(run)
    return {"sglang.srt.managers.schedule_batch:Req.update_finish_state": stops_loops(run)}


def stops_loops(run: AdapterRun) -> Callable[..., None]:
    """AROUND `Req.update_finish_state`, which runs for every request after every step that gave it tokens."""
    from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR

    settings: LoopAbortSettings = run.settings  # type: ignore[assignment]
    enforce, base_tokens = settings.mode is Mode.ENFORCE, settings.base_tokens
    counters = run.counters("loops_found", "loops_stopped", "loops_in_tool_calls")
    counted = {"loops_found": 0, "loops_stopped": 0, "loops_in_tool_calls": 0}

    def count(name: str) -> None:
        counted[name] += 1
        counters.set(name, counted[name])

    def update_finish_state(original: Callable[..., None], req: Any, *args: Any, **kwargs: Any) -> None:
        original(req, *args, **kwargs)
        watch = getattr(req, "_dsv41_loops", None)
        if watch is None:
            run.engaged()
            watch = req._dsv41_loops = RequestWatch(base_tokens)
        if len(req.output_ids) < watch.next_length or req.finished_reason is not None:
            return
        decode = req.tokenizer.decode if req.tokenizer is not None else None
        loop = watch.check(req.output_ids, req.origin_input_ids, decode)
        if loop is None or watch.told:
            return
        watch.told = True
        count("loops_found")
        if loop.in_tool_call:
            count("loops_in_tool_calls")
        # The request's text stays out of the log: only where and how long.
        log.warning("request %s: %s; %s", req.rid, loop, "stopped" if enforce else "only observed")
        if enforce:
            count("loops_stopped")
            # The engine's own stop by a string: it trims to finished_len, frees and reports as for any other.
            req.finished_reason = FINISH_MATCHED_STR(matched=f"repetition: {loop}")
            req.finished_len = len(req.output_ids)

    return update_finish_state
