"""A step whose rows could not be read is dropped whole: its requests fail with row, file and errno, the rank lives on.

The rows of such a step are NaN on every rank (lookups.py). A flag beside the model is set from that, in stream order,
so that it belongs to exactly one step however far the CPU has run ahead; then the rows become zeros, because NaN
logits would end the sampler's kernel and with it the rank. What was computed from them never leaves the scheduler:

- a prefill is looked at before the next batch is built, because building it would publish the chunk's KV to the
  prefix cache; the scheduler's own way of dropping a forward's output does the rest;
- a decode step is looked at before its tokens are taken.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.runtime_context import get_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .install import RankRows

log = logging.getLogger(__name__)

_KEPT = "dsv41_engram_step"
"""Attribute of a batch's result: what its lookups came to."""


class Flags:
    """Which layers' rows are NaN in the step that runs, on the model's device."""

    def __init__(self, layers: Sequence[int], device: torch.device) -> None:
        self._index = {layer: index for index, layer in enumerate(layers)}
        self._last = layers[-1]
        self._is_cuda = device.type == "cuda"
        self._flags = torch.zeros(len(layers), dtype=torch.bool, device=device)
        self._early = torch.zeros(len(layers), dtype=torch.bool, device="cpu", pin_memory=self._is_cuda)
        self._early_event = torch.cuda.Event() if self._is_cuda else None
        self._is_early = False

    def check(self, layer: int, values: torch.Tensor, *, chunk_rows: int) -> torch.Tensor:
        """Note in stream order whether a chunk of these rows is NaN; gives rows that can be computed with."""
        firsts = values.view(-1, values.shape[-1])[::chunk_rows, 0]
        failed = firsts.isnan().any()
        self._flags[self._index[layer]].logical_or_(failed)
        values.masked_fill_(failed, 0)
        if layer == self._last and self._early_event is not None and not torch.cuda.is_current_stream_capturing():
            self._early.copy_(self._flags, non_blocking=True)
            self._early_event.record()
            self._is_early = True
        return values

    def begin_step(self) -> None:
        """What a warm-up or an unfinished pass noted is not this step's."""
        self._is_early = False

    def end_of_step(self, stream: Any) -> Step:
        """Behind the step on its stream: keep the flags for its result, and begin the next with none."""
        if not self._is_cuda:
            step = Step(self._flags.clone(), None, None)
            self._flags.zero_()
            return step
        host = torch.empty(self._flags.shape, dtype=torch.bool, device="cpu", pin_memory=True)
        event = torch.cuda.Event()
        with torch.cuda.stream(stream):
            host.copy_(self._flags, non_blocking=True)
            self._flags.zero_()
            event.record()
        early = (self._early, self._early_event) if self._is_early else None
        return Step(host, event, early)


class Step:
    """One step's flags, once the device has come so far."""

    def __init__(self, flags: torch.Tensor, event: Any, early: tuple[torch.Tensor, Any] | None) -> None:
        self._flags, self._event, self._early = flags, event, early
        self.is_handled = False

    def failed_early(self) -> bool:
        """As soon as the last layer's rows are in: the rest of the step may still run. Next step's are not in yet."""
        if self._early is None:
            return self.failed()
        flags, event = self._early
        event.synchronize()
        return bool(flags.any())

    def failed(self) -> bool:
        if self._event is not None:
            self._event.synchronize()
        return bool(self._flags.any())


class StepFailures:
    """The scheduler's side: AROUND `run_batch` and `process_batch_result`."""

    def __init__(self, rows: RankRows) -> None:
        self._rows = rows

    def run_batch(self, original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if self._rows.flags is not None:
            self._rows.flags.begin_step()
        result = original(scheduler, batch, *args, **kwargs)
        if self._rows.flags is None or not scheduler.is_generation:
            return result
        step = self._rows.flags.end_of_step(scheduler.forward_stream if scheduler.enable_overlap else None)
        setattr(result, _KEPT, step)
        if batch.forward_mode.is_extend() and step.failed_early():
            step.is_handled = True
            reason = self._reason()
            for request in batch.reqs:
                request.skip_radix_cache_insert = True
                request.discard_output_reason = _abort(reason)
            if scheduler.chunked_req in batch.reqs:
                scheduler._pending_chunked_abort_req = scheduler.chunked_req
        return result

    def process_batch_result(
        self, original: Callable[..., Any], scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any
    ) -> Any:
        step: Step | None = getattr(result, _KEPT, None)
        if step is not None and not step.is_handled and step.failed():
            reason = self._reason()
            for request in batch.reqs:
                if not request.finished():
                    request.skip_radix_cache_insert = True
                    request.finished_len = len(request.output_ids)  # without the token this step gave
                    request.to_finish = _abort(reason)
        self._rows.count()
        return original(scheduler, batch, result, *args, **kwargs)

    def _reason(self) -> str:
        """Of all ranks, because the one that failed need not be the one that answers. Every rank comes here."""
        mine = [_describe(error) for error in self._rows.take_errors()]
        said: list[list[str] | None] = [mine]
        parallel = get_parallel()
        if parallel.tp_size > 1:
            said = [None] * parallel.tp_size
            torch.distributed.all_gather_object(said, mine, group=parallel.tp_group.cpu_group)
        found = [f"rank {rank}: {what}" for rank, whats in enumerate(said) for what in whats or []]
        text = " ".join(found) or "no rank reports a failed read, but rows are NaN: the packed files hold NaN."
        reason = f"Engram rows could not be read, so the step was dropped. {text}"
        log.error("engram_nvme: %s", reason)
        self._rows.step_failed(reason)
        return reason


def _abort(reason: str) -> FINISH_ABORT:
    return FINISH_ABORT(reason, status_code=HTTPStatus.INTERNAL_SERVER_ERROR, err_type="EngramReadError")


def _describe(error: Exception) -> str:
    number = getattr(error, "errno", None)
    return f"{error}{f' (errno {number})' if number else ''}"
