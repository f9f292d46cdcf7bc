"""What nvidia-smi says about the GPUs, asked once and with a bound. `not run on GB10`: tested on text of its shape."""

from __future__ import annotations

import shutil
import subprocess

from .facts import Gpu

PROGRAM = "nvidia-smi"
_FIELDS = (
    "name", "clocks.sm", "clocks.max.sm", "power.draw", "temperature.gpu",
    "clocks_event_reasons.sw_thermal_slowdown",
)  # fmt: skip


def read_gpus(timeout_s: float) -> tuple[Gpu, ...]:
    """Raises OSError or ValueError when nvidia-smi is not there, too slow or speaks another language."""
    program = shutil.which(PROGRAM) or shutil.which(PROGRAM, path="/run/current-system/sw/bin:/usr/bin")
    if program is None:
        raise FileNotFoundError(f"there is no {PROGRAM}")
    argv = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, env={"LC_ALL": "C"})
    except subprocess.TimeoutExpired:
        raise ValueError(f"{PROGRAM} did not answer within {timeout_s:g} s") from None
    if done.returncode:
        raise ValueError(f"{PROGRAM} ended with {done.returncode}: {(done.stdout + done.stderr).strip()[:200]}")
    return parse_gpus(done.stdout)


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """One line a GPU, in the order of `_FIELDS`. Raises ValueError on anything else."""
    gpus = []
    for line in text.splitlines():
        if not line.strip():
            continue
        values = [value.strip() for value in line.rsplit(",", len(_FIELDS) - 1)]
        if len(values) != len(_FIELDS):
            raise ValueError(f"{PROGRAM} printed {line[:100]!r}, expected {len(_FIELDS)} values")
        name, sm, max_sm, power, temperature, thermal = values
        slowdown = {"active": True, "not active": False}.get(thermal.lower())
        gpus.append(
            Gpu(name=name[:64], sm_mhz=_number(sm), max_sm_mhz=_number(max_sm), power_w=_number(power),
                temperature_c=_number(temperature), thermal_slowdown=slowdown)
        )  # fmt: skip
    return tuple(gpus)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # [N/A], [Not Supported]
