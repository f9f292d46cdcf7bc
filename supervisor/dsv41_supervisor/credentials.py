"""Secrets that systemd hands to a unit (LoadCredential=): readable by that unit alone, gone with it."""

from __future__ import annotations

import os
from pathlib import Path

FLEET_KEY = "fleet-key"
API_KEYS = "api-keys"


def credential(name: str) -> Path | None:
    """The file of a credential that this unit was given; None when there is none.

    An empty one stands for a file that was missing when the unit started (SetCredential= beside LoadCredential= in the
    modules), so that the program says which file, where systemd would only say "243/CREDENTIALS".
    """
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        return None
    path = Path(directory) / name
    try:
        return path if path.stat().st_size > 0 else None
    except OSError:
        return None
