"""What clients that others wrote may see of this machine: no key, no proxy, no home, and no network but loopback's."""

from __future__ import annotations

import os
from pathlib import Path


def environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # LiteLLM fetches its prices otherwise, at the import
        "PYTHONUNBUFFERED": "1",
    }
