"""`dsv41 doctor --deep` with the engine's own environment: all ranks add up a tensor with the real torch and Gloo.

NCCL and its NET/IB are not run here (`not run on GB10`): the same program runs them on CUDA.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.demo.network import Mode, mode
from dsv41_supervisor.doctor.deep.probe import PROGRAM, directory
from dsv41_supervisor.fleet.peers import SupervisorClient
from dsv41_supervisor.settings import EngineKind

from tests.harness.fleet import FleetUnderTest, running_fleet


@pytest.fixture
def engine_python(repo_root: Path) -> Path:
    python = repo_root / ".venv-engine" / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{python} does not exist, so no collective can be run. Run `make engine` once.")
    return python


def _programs() -> list[int]:
    """Processes that run the program of the probe."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                argv = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if str(PROGRAM).encode() in argv:
                found.append(int(name))
    return found


async def _deep(fleet: FleetUnderTest) -> tuple[int | None, dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dsv41_supervisor", "doctor", "--deep", "--json", "--settings",
        str(fleet.demo.settings_path), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    return process.returncode, json.loads(out)


@pytest.mark.timeout(900)
async def test_a_real_collective_runs_over_the_planned_interface_and_leaves_nothing(
    tmp_path: Path, demo_checkpoint: Path, engine_python: Path
) -> None:
    real = {"engine": EngineKind.SGLANG, "engine_python": engine_python, "gateway": False}
    async with running_fleet(tmp_path, demo_checkpoint, **real) as fleet:  # type: ignore[arg-type]
        _, said = await _deep(fleet)
        for node in fleet.settings.fleet.nodes:
            (collective,) = [ran for ran in said["deep"][node]["ran"] if ran["test"] == "collective"]
            assert (collective["problem"], collective["skipped"]) == (None, None)
            assert collective["figure"] > 0
            if mode().mode is Mode.NAMESPACES:
                assert collective["transport"] == [fleet.settings.fleet.nodes[node].management_interface]
                assert collective["wanted_transport"] == collective["transport"][0]
        assert not [f for n in said["nodes"].values() for f in n["findings"]
                    if f["check"] == "deep-collective" and f["severity"] == "refusal"]  # fmt: skip

        # A rank alone: its peers never come. It says so within its bound, and is gone.
        async with SupervisorClient(fleet.settings, "spark2") as client:
            body = {"test": "collective", "port": 20001, "seconds": 20}
            alone = await client.call("POST", "/doctor/run", body, timeout_s=120)
        assert "all ranks to meet at" in alone["problem"]
        assert alone["figure"] is None
        assert _programs() == []
        for node in fleet.settings.fleet.nodes:
            assert list(directory(fleet.settings, node).iterdir()) == []
