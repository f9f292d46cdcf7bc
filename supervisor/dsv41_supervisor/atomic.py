"""Small files that are either the old or the new, never half: state, plans, reports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .journal import log


def write_json(path: Path, value: Any, mode: int = 0o640) -> None:
    """Write beside the target, flush to disk, rename. The directory is made when it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "w") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None when there is none. An unreadable one is set aside and named in the log."""
    try:
        raw = json.loads(path.read_bytes())
        if not isinstance(raw, dict):
            raise ValueError("not a JSON object")
        return raw
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        aside = path.with_name(path.name + ".unreadable")
        log.warning("%s is unreadable (%s); set aside as %s", path, error, aside)
        try:
            path.replace(aside)
        except OSError:
            log.warning("could not set %s aside", path)
        return None
