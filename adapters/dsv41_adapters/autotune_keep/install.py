"""Gives each launch a cache directory of its own. Imports neither torch nor sglang: the hook is given a path."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..activation import AdapterRun

log = logging.getLogger(__name__)

PACKAGES = ("sglang", "sglang-kernel", "torch", "triton", "flashinfer-python", "nvidia-cutlass-dsl", "b12x")
"""Whose version changes what there is to tune."""


def hooks(run: AdapterRun) -> dict[str, object]:
    """Hook by target, as `spec.py` declares them."""
    if run.plan.launch is None:
        raise run.refuse("the plan does not say what was launched.", "plan")
    target = "sglang.srt.model_executor.runner.flashinfer_autotune:flashinfer_autotune_cache_path"
    return {target: keeps_apart(run, run.plan.launch)}


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def dropped_as_damaged(kept: Path) -> bool:
    """Remove a file that is no JSON object: a power cut leaves it on every rank, and each boot would end at it."""
    try:
        if isinstance(json.loads(kept.read_bytes()), dict):
            return False
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError):
        pass
    kept.unlink()
    return True


def keeps_apart(run: AdapterRun, launch: str) -> Callable[..., Path]:
    """AFTER `flashinfer_autotune_cache_path`: its file, in a directory of this launch below its own.

    SGLang's key holds the model, its types, the MoE backend and the parallel sizes; another FP8 backend, chunk size or
    kernel variable has the same key, and the old file is loaded. A file of another launch is never at this path.
    """
    installed = versions()
    described = {"launch": launch, "versions": installed}
    key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]

    def after(result: Path, *args: Any, **kwargs: Any) -> Path:
        directory = result.parent / f"launch-{key}"
        kept = directory / result.name
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # Written at each boot: tuning takes minutes, and a directory that cannot be written shows only behind it.
            staged = directory / f".about-{os.getpid()}"
            staged.write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")
            os.replace(staged, directory / "about")
            damaged = dropped_as_damaged(kept)
        except OSError as error:
            what = f"tuned tactics cannot be kept in {directory} ({error.strerror}). Let the engine's user write there."
            raise run.refuse(what) from None
        run.engaged()
        found = "tactics of an earlier boot" if kept.is_file() else "nothing kept yet"
        run.note(f"launch {key}: {'a damaged file was removed' if damaged else found}")
        log.info("autotune_keep: %s %s", kept, "is there" if kept.is_file() else "is not there yet")
        return kept

    return after
