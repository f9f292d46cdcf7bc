"""What unit dsv41-probe runs: becomes the engine's Python with the probe of the adapters and the rank's environment.

The supervisor writes the request beforehand and reads the result afterwards; both are in one directory of its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NoReturn

import dsv41_adapters

from ...atomic import write_json
from ...demo.keeper import MARK
from ...errors import Dsv41Error, Stage
from ...settings import Settings

PROBE_UNIT = "dsv41-probe"
PROGRAM = Path(dsv41_adapters.__file__).with_name("probe.py")
"""Imports torch: it lives with what runs in the engine, and the supervisor only knows its path."""


def directory(settings: Settings, node: str) -> Path:
    return settings.run_dir(node) / "probe"


def write_request(settings: Settings, node: str, environment: dict[str, str], request: dict[str, Any]) -> Path:
    """Leaves the request for the unit; returns where its result will be."""
    where = directory(settings, node)
    clear(settings, node)
    where.mkdir(parents=True, exist_ok=True)
    result = where / "result.json"
    document = {"environment": environment, "request": request | {"result": str(result)}}
    write_json(where / "unit.json", document)
    return result


def clear(settings: Settings, node: str) -> None:
    """Nothing of an earlier probe stays."""
    where = directory(settings, node)
    if where.is_dir():
        for path in where.iterdir():
            path.unlink(missing_ok=True)


def become(settings: Settings, node: str) -> NoReturn:
    """Replace this process by the program. Raises Dsv41Error when nothing was asked or the engine is not there."""
    where = directory(settings, node)
    try:
        document = json.loads((where / "unit.json").read_text())
        request, environment = document["request"], document["environment"]
    except (OSError, ValueError, KeyError) as error:
        raise Dsv41Error(
            f"there is no request in {where}: {error}.", stage=Stage.ENGINE, node=node,
            hint="This unit is started by the supervisor; run dsv41 doctor --deep.",
        ) from None  # fmt: skip
    write_json(where / "request.json", request)
    python = settings.engine.python
    if python is None:
        raise Dsv41Error(
            "this test runs in the environment of engine.python, and the engine is an image.", stage=Stage.ENGINE,
            node=node, hint="Nothing to do: a boot goes the same way, and its readiness is a token through all ranks.",
        )  # fmt: skip
    # With the demo's mark, by which everything that it started is found again.
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR", MARK) if name in os.environ}
    try:
        os.execve(python, [python, "-I", str(PROGRAM), str(where / "request.json")], kept | environment)
    except OSError as error:
        raise Dsv41Error(
            f"cannot run {python}: {error.strerror}.", stage=Stage.ENGINE, node=node,
            hint="Correct engine.python.",
        ) from None  # fmt: skip
