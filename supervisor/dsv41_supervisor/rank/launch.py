"""The fingerprint of a launch: what kernels are chosen from, and nothing of one rank or one boot. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

OF_A_RANK_OR_BOOT = frozenset({"--node-rank", "--dist-init-addr", "--host", "--port"})
"""Flags that are a rank's own or another's in every boot."""
OF_A_RUN = frozenset({"SGLANG_RUN_ID"})
"""Variables that name one run: with them in the fingerprint nothing kept would ever be found again."""


def launch_fingerprint(argv: Sequence[str], environment: Mapping[str, str], adapters: Mapping[str, Any]) -> str:
    """16 hex digits, equal on all ranks and over boots until a flag, a variable or an adapter changes."""
    kept = []
    skip = False
    for argument in argv:
        if not skip and argument not in OF_A_RANK_OR_BOOT:
            kept.append(argument)
        skip = argument in OF_A_RANK_OR_BOOT
    said = {
        "argv": kept,
        "environment": {name: value for name, value in environment.items() if name not in OF_A_RUN},
        "adapters": dict(adapters),
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
