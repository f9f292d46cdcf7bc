"""Declares `mxfp8_b12x`. Loaded by the supervisor too: standard library and pydantic only."""

from __future__ import annotations

from ..adapter import Adapter, AdapterSettings, How, Role, Standing, Target

CAPABILITY = (12, 1)
"""SM121, the GB10. FlashInfer has the kernel for SM120 too; nobody looked at it there."""
FLASHINFER = "0.7.2"
"""The version whose `mm_mxfp8` was read: b12x takes 1D 128x4-swizzled scales, as cutlass does, and K in 128s."""
BLOCK_K = 128


class Mxfp8B12xSettings(AdapterSettings):
    """Nothing to set: on is on."""


_UTILS = "sglang.srt.layers.quantization.fp8_utils"

ADAPTER = Adapter(
    name="mxfp8_b12x",
    changes="Dense FP8 layers whose K is a multiple of 128 run on FlashInfer's b12x kernel instead of cutlass",
    targets=(
        Target(f"{_UTILS}:flashinfer_mxfp8_blockscaled_linear", known={"7c265831e1652916": "0.5.23"}, how=How.AROUND),
        Target(f"{_UTILS}:resolve_block_fp8_mxfp8_backend", known={"fb8b4414456800ef": "0.5.23"}, how=How.AFTER),
        Target(f"{_UTILS}:dispatch_block_fp8_mxfp8_linear", known={"8c7fb913a5af5441": "0.5.23"}, how=How.RELIES),
        Target(
            "sglang.srt.layers.quantization.fp8:Fp8LinearMethod._prepare_block_fp8_as_mxfp8",
            known={"cf61756815b54dd2": "0.5.23"},
            how=How.RELIES,
        ),
        Target(
            "sglang.srt.layers.quantization.fp8:Fp8LinearMethod._process_mxfp8_linear_weight_scale",
            known={"56fa37b085fca04f": "0.5.23"},
            how=How.RELIES,
        ),
    ),
    settings=Mxfp8B12xSettings,
    engages="the first dense layer's forward, while the graphs are captured",
    until="sglang's --fp8-gemm-backend has b12x",
    credit="none: written for this project; that this kernel fits six tokens is the measurement of MiaAI-Lab's recipe",
    standing=Standing.PORTED,
    same_output=False,
    processes=frozenset({Role.SCHEDULER}),
)
