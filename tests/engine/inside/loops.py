"""In the engine's environment: real requests of SGLang, finished or not by `loop_abort`. Prints one JSON object.

    loops.py MODE SCRATCH

The adapter is armed through SGLang's own plugin registry, as in a scheduler; the requests are given tokens by hand.
"""

from __future__ import annotations

import json
import sys
from array import array
from pathlib import Path

from dsv41_adapters.activation import AdapterRun
from dsv41_adapters.adapter import Role
from dsv41_adapters.hooks import arm_hooks
from dsv41_adapters.loop_abort import install
from dsv41_adapters.loop_abort.spec import ADAPTER
from dsv41_adapters.plan import RankPlan
from dsv41_adapters.report import Reporter, read_counters
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

mode, scratch = sys.argv[1], Path(sys.argv[2])
plan = RankPlan("spark", 0, 1, "boot", scratch, {"loop_abort": {"mode": mode}}, None)
reporter = Reporter(scratch, boot="boot", rank=0, role=Role.SCHEDULER)
run = AdapterRun(ADAPTER, ADAPTER.settings(mode=mode), plan, reporter)
arm_hooks([(ADAPTER, install.hooks(run))], run.role)


class Words:
    """Tokens as words, so that the text of a unit is prose."""

    eos_token_id, additional_stop_token_ids = 0, None

    @staticmethod
    def decode(ids: array) -> str:
        return " ".join("abcdefghijklmnopqrstuvwxyz"[i % 26] * (3 + i % 5) + "abcdefghij"[i % 10] for i in ids)


def finish(unit: list[int], n_tokens: int, step: int, max_new_tokens: int = 30_000) -> dict[str, object]:
    params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
    params.normalize(None)
    req = Req("r", "", array("q", [1, 2, 3]), params, eos_token_ids=set(), vocab_size=10_000)
    req.tokenizer = Words()
    tokens = (unit * (n_tokens // len(unit) + 1))[:n_tokens]
    while len(req.output_ids) < n_tokens and not req.finished():
        new = tokens[len(req.output_ids) : len(req.output_ids) + step]
        req.output_ids.extend(new)
        req.update_finish_state(len(new))
    reason = None if req.finished_reason is None else req.finished_reason.to_json()
    return {"n_tokens": len(req.output_ids), "finished_len": req.finished_len, "reason": reason}


fresh = list(range(4000))
answers = {
    "loop": finish(fresh[:100], 20_000, 1),
    "loop, six tokens a step": finish(fresh[:100], 20_000, 6),
    "new text": finish(fresh, 4000, 3),
    "the cap comes first": finish(fresh[:100], 20_000, 1, max_new_tokens=500),
}
print(json.dumps({"answers": answers, "counters": read_counters(scratch, "boot")}))
