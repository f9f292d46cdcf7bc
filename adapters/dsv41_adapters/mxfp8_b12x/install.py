"""Names the backend in SGLang's call of `mm_mxfp8`. Imports torch and sglang: scheduler processes only."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .spec import BLOCK_K, CAPABILITY, FLASHINFER

if TYPE_CHECKING:
    from ..activation import AdapterRun

log = logging.getLogger(__name__)

_UTILS = "sglang.srt.layers.quantization.fp8_utils"
_FLAG = "Set engine.backends.fp8_gemm to flashinfer_cutlass, whose scales this kernel reads."


def hooks(run: AdapterRun) -> dict[str, object]:
    """Hook by target, as `spec.py` declares them. Raises AdapterRefused where the kernel cannot run."""
    problems = unfit()
    if problems:
        raise run.refuse(" ".join(problems))
    return {
        f"{_UTILS}:flashinfer_mxfp8_blockscaled_linear": names_b12x(run),
        f"{_UTILS}:resolve_block_fp8_mxfp8_backend": wants_cutlass(run),
    }


def unfit() -> list[str]:
    """Why this machine cannot run it: one sentence a reason."""
    problems = []
    if not torch.cuda.is_available():
        problems.append("it needs a GPU of compute capability 12.1 (GB10); torch finds no GPU here.")
    elif (found := torch.cuda.get_device_capability()) != CAPABILITY:
        problems.append(
            f"the GPU has compute capability {'.'.join(map(str, found))}, the kernel was made for "
            f"{'.'.join(map(str, CAPABILITY))} (GB10)."
        )
    cuda = torch.version.cuda
    if cuda is None or int(cuda.partition(".")[0]) < 13:
        problems.append(f"the kernel needs CUDA 13, torch was built for {cuda or 'none'}.")
    try:
        version = importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    if version != FLASHINFER:
        problems.append(f"flashinfer-python is {version}, known is {FLASHINFER}.")
    return problems


def wants_cutlass(run: AdapterRun) -> Callable[..., Any]:
    """AFTER `resolve_block_fp8_mxfp8_backend`: with another one, no layer would come by and nobody would know."""

    def after(result: Any) -> Any:
        if not result.is_flashinfer_cutlass():
            raise run.refuse(f"dense FP8 layers are served by {result.value}. {_FLAG}")
        return result

    return after


def names_b12x(run: AdapterRun) -> Callable[..., torch.Tensor]:
    """AROUND `flashinfer_mxfp8_blockscaled_linear`.

    A layer whose K is no multiple of 128 stays on cutlass, which the kernel's own check would refuse: at four ranks
    that is the shared expert's w2 (K 576). The report names them. Anything else that b12x refuses ends the step.
    """
    moved: set[tuple[int, int]] = set()
    left: set[tuple[int, int]] = set()

    def linear(
        original: Callable[..., torch.Tensor],
        input: torch.Tensor,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        input_scale: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        output_dtype: torch.dtype | None = None,
        backend: str = "cutlass",
        pin_tactic: bool = False,
    ) -> torch.Tensor:
        if backend != "cutlass":
            raise run.refuse(f"a dense FP8 layer asks for {backend}. {_FLAG}")
        shape = (weight.shape[0], weight.shape[1])
        fits = shape[1] % BLOCK_K == 0
        if shape not in (moved if fits else left):
            (moved if fits else left).add(shape)
            run.engaged()
            run.note(told(moved, left))
        return original(
            input, weight, weight_scale, input_scale, bias, output_dtype, "b12x" if fits else backend, pin_tactic
        )

    return linear


def told(moved: set[tuple[int, int]], left: set[tuple[int, int]]) -> str:
    """What the report says of the shapes seen so far."""
    on = f"{len(moved)} shapes of layers on b12x"
    if not left:
        return on
    shapes = ", ".join(f"{n}x{k}" for n, k in sorted(left))
    return f"{on}; left on cutlass, for K is no multiple of {BLOCK_K}: {shapes}"
