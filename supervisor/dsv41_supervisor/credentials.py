"""Secrets that systemd hands to a unit (LoadCredential=): readable by that unit alone, gone with it."""

from __future__ import annotations

import os
from pathlib import Path

FLEET_KEY = "fleet-key"
WEBHOOK_URL = "webhook-url"
API_KEYS = "api-keys"
TLS_CERTIFICATE = "tls-certificate"
TLS_KEY = "tls-key"
MISSING = b"-"
"""Stands for a file that was missing when the unit started (SetCredential= beside LoadCredential= in the modules), so
that the program says which file; systemd alone would end the unit with 243/CREDENTIALS."""


def credential(name: str) -> Path | None:
    """The file of a credential that this unit was given; None when there is none."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        return None
    path = Path(directory) / name
    try:
        return None if path.read_bytes() == MISSING else path
    except OSError:
        return None
