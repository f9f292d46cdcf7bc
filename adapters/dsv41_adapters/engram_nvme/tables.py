"""Keeps the checkpoint's Engram tables from being read: 189 GiB of the real one."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

if TYPE_CHECKING:
    import torch

    from ..activation import AdapterRun

log = logging.getLogger(__name__)

TABLE = re.compile(r"(?:^|\.)layers\.\d+\.engram\.embed\.(?:weight|scale)$")
_FORMATS = frozenset({"auto", "safetensors"})


def without_table_files(run: AdapterRun) -> Callable[..., tuple[str, list[str], bool]]:
    """AROUND `DefaultModelLoader._prepare_weights`: files that hold only tables are not even opened."""

    def prepare(original: Callable[..., tuple[str, list[str], bool]], loader: Any, *args: Any, **kwargs: Any):
        folder, files, use_safetensors = original(loader, *args, **kwargs)
        load_format = str(getattr(loader.load_config.load_format, "value", loader.load_config.load_format))
        if not use_safetensors or load_format not in _FORMATS:
            raise run.refuse(
                f"with --load-format {load_format} the tables would be read; it needs safetensors files.",
                "hook",
            )
        left_out = table_only_files(Path(folder))
        kept = [file for file in files if Path(file).name not in left_out]
        if left_out:
            log.info("engram_nvme: not reading %s, which hold only Engram tables", ", ".join(sorted(left_out)))
        return folder, kept, use_safetensors

    return prepare


def table_only_files(folder: Path) -> set[str]:
    """Names of checkpoint files whose every tensor is a table, by the index; none without an index."""
    try:
        weight_map = json.loads((folder / "model.safetensors.index.json").read_bytes())["weight_map"]
    except FileNotFoundError:
        return set()
    with_others = {file for name, file in weight_map.items() if not TABLE.search(name)}
    return set(weight_map.values()) - with_others


def without_tables(
    original: Callable[..., Iterator[tuple[str, torch.Tensor]]],
    hf_weights_files: list[str],
    *args: Any,
    **kwargs: Any,
) -> Iterator[tuple[str, torch.Tensor]]:
    """AROUND the safetensors iterators: a file that mixes tables with others is read tensor by tensor."""
    plain, mixed = [], []
    for file in hf_weights_files:
        with safe_open(file, framework="pt", device="cpu") as tensors:  # reads the header only
            (mixed if any(TABLE.search(name) for name in tensors.keys()) else plain).append(file)  # noqa: SIM118
    yield from original(plain, *args, **kwargs)
    for file in mixed:
        with safe_open(file, framework="pt", device="cpu") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                if not TABLE.search(name):
                    yield name, tensors.get_tensor(name)
