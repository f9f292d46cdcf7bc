"""In the engine's environment: `autotune_keep` and `mxfp8_b12x` around SGLang's own functions. One JSON object.

    kernels.py SCRATCH

Neither can run for real without a GB10. The functions that are hooked are SGLang's; what stands in for the GPU is said
where it does.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import torch
from dsv41_adapters.activation import AdapterRun
from dsv41_adapters.adapter import Adapter, AdapterRefused, Role
from dsv41_adapters.autotune_keep import install as autotune_keep
from dsv41_adapters.autotune_keep.spec import ADAPTER as AUTOTUNE_KEEP
from dsv41_adapters.hooks import arm_hooks
from dsv41_adapters.mxfp8_b12x import install as mxfp8_b12x
from dsv41_adapters.mxfp8_b12x.spec import ADAPTER as MXFP8_B12X
from dsv41_adapters.plan import RankPlan
from dsv41_adapters.report import Reporter, read_reports
from sglang.srt.layers.quantization import fp8_utils
from sglang.srt.model_executor.runner import flashinfer_autotune

scratch = Path(sys.argv[1])


def run_of(adapter: Adapter, launch: str | None, name: str = "") -> AdapterRun:
    directory = scratch / f"{adapter.name}-{launch}-{name}"
    directory.mkdir()
    plan = RankPlan("spark", 0, 1, "boot", directory, {}, None, None, launch)
    return AdapterRun(adapter, adapter.settings(), plan, Reporter(directory, boot="boot", rank=0, role=Role.SCHEDULER))


def reason(run: AdapterRun) -> str | None:
    (report,) = read_reports(run.plan.report_dir, "boot")
    return report.adapters[run.adapter.name].reason


def autotune() -> dict[str, object]:
    """SGLang's path for a made-up GPU and model; then ours for two launches, with stale files at all other paths."""
    sys.modules["flashinfer"] = types.SimpleNamespace(__version__="0.7.2")
    torch.cuda.get_device_capability = lambda *_: (12, 1)
    parallel = SimpleNamespace(tp_size=3, pp_size=1, attn_dp_size=1, moe_ep_size=1, tp_rank=1, pp_rank=0, dp_rank=None)
    moe = SimpleNamespace(moe_runner_backend="flashinfer_mxfp4")
    kernel = SimpleNamespace(flashinfer_autotune_skip_ops=None)
    flashinfer_autotune.get_model = lambda: SimpleNamespace(model_path="/m", quantization="fp8")
    flashinfer_autotune.get_exec = lambda: SimpleNamespace(moe=moe, kernel=kernel)
    flashinfer_autotune.get_parallel = lambda: parallel
    flashinfer_autotune.envs.SGLANG_CACHE_DIR.set(str(scratch / "cache"))
    runner = SimpleNamespace(
        device="cuda", dtype="bf16", is_draft_worker=False, gpu_id=0, model_config=SimpleNamespace(hf_config=object())
    )
    name = "flashinfer_autotune_cache_path"
    stock = getattr(flashinfer_autotune, name)
    stock_path = stock(runner)
    stock_path.write_text("{}")

    hooks = {launch: autotune_keep.hooks(run_of(AUTOTUNE_KEEP, launch)) for launch in ("one", "two")}
    (target,) = hooks["one"]
    one, two = (hooks[launch][target](stock(runner)) for launch in ("one", "two"))
    one.write_text("{}")
    again = autotune_keep.hooks(run := run_of(AUTOTUNE_KEEP, "one", "again"))
    kept = again[target](stock(runner))
    arm_hooks([(AUTOTUNE_KEEP, again)], Role.SCHEDULER)
    armed = getattr(flashinfer_autotune, name)(runner)
    try:
        autotune_keep.hooks(run_of(AUTOTUNE_KEEP, None))
        refused = None
    except AdapterRefused as error:
        refused = str(error)
    return {
        "stock": str(stock_path), "one": str(one), "two": str(two), "kept": str(kept), "armed": str(armed),
        "two is there": two.is_file(), "reason": reason(run), "without a launch": refused,
        "about": json.loads((one.parent / "about").read_text()),
    }  # fmt: skip


def b12x() -> dict[str, object]:
    """Refused on this machine; and, as if on a GB10, which backend SGLang's function asks FlashInfer for."""
    found: dict[str, object] = {}
    try:
        mxfp8_b12x.hooks(run_of(MXFP8_B12X, "here"))
    except AdapterRefused as error:
        found["here"] = str(error)

    run = run_of(MXFP8_B12X, "as-if")
    mxfp8_b12x.unfit = list
    arm_hooks([(MXFP8_B12X, mxfp8_b12x.hooks(run))], Role.SCHEDULER)
    asked: list[tuple[list[int], str]] = []

    def mm_mxfp8(a, b, a_scale, b_scale, *, out_dtype, use_8x4_sf_layout, backend):
        asked.append(([b.shape[1], b.shape[0]], backend))
        return torch.zeros(a.shape[0], b.shape[1], dtype=out_dtype)

    fp8_utils.flashinfer_mm_mxfp8 = mm_mxfp8
    cutlass = fp8_utils.Mxfp8DenseGemmBackend.FLASHINFER_CUTLASS
    served = fp8_utils.dispatch_block_fp8_mxfp8_linear(cutlass)
    for n, k in ((64, 1280), (5120, 576), (64, 1280), (32, 768)):
        weight = torch.zeros(n, k, dtype=torch.float8_e4m3fn)
        row = torch.zeros(6, k, dtype=torch.bfloat16)
        served(row, weight, torch.zeros(4, dtype=torch.uint8), input_scale=torch.zeros(4), pin_tactic=False)
    found["asked"], found["reason"] = asked, reason(run)
    try:
        fp8_utils.dispatch_block_fp8_mxfp8_linear(fp8_utils.Mxfp8DenseGemmBackend.FLASHINFER_CUTEDSL)(
            row, weight, torch.zeros(4, dtype=torch.uint8), pin_tactic=False
        )
    except AdapterRefused as error:
        found["another backend"] = str(error)
    from sglang.srt.layers.quantization.fp8_utils import resolve_block_fp8_mxfp8_backend

    try:
        resolve_block_fp8_mxfp8_backend()
    except AdapterRefused as error:
        found["no flag"] = str(error)
    return found


print(json.dumps({"autotune": autotune(), "b12x": b12x()}))
