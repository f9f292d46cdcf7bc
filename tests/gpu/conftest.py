"""Servers of one session, booted together: a boot takes minutes, and a GPU is lent by the minute."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent


def _why_not() -> str | None:
    if not Path("/dev/nvidiactl").exists():
        return "this machine has no CUDA device; adapters/GPU.md says how these tests are run"
    if importlib.util.find_spec("sglang") is None or importlib.util.find_spec("torch") is None:
        return "sglang cannot be imported here; adapters/GPU.md says how these tests are run"
    if not os.environ.get("DSV41_GPU_CHECKPOINT"):
        return "DSV41_GPU_CHECKPOINT names no checkpoint; adapters/GPU.md says how these tests are run"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = _why_not()
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(550))
            if why is not None:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def figures() -> Iterator[dict[str, Any]]:
    """Measured numbers, written to $DSV41_GPU_FIGURES at the end."""
    found: dict[str, Any] = {}
    yield found
    print("\nFIGURES", json.dumps(found, indent=1))
    if path := os.environ.get("DSV41_GPU_FIGURES"):
        Path(path).write_text(json.dumps(found, indent=1) + "\n")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tests.gpu import servers

    return servers.prepare(Path(os.environ["DSV41_GPU_CHECKPOINT"]), tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def fleet(
    checkpoints: Any, figures: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """Every kind of server by name. One that did not become ready keeps its reason, and only its tests fail."""
    from tests.gpu import servers

    for path in checkpoints.tables(checkpoints.whole):
        servers.forget(path)
    figures["resident_before_boot"] = sum(map(servers.resident_bytes, checkpoints.tables(checkpoints.whole)))
    base = Path(os.environ.get("DSV41_GPU_LOGS") or tmp_path_factory.mktemp("servers"))
    named = os.environ.get("DSV41_GPU_SERVERS")
    asked = named.split(",") if named else servers.ALONE
    n_gpus = servers.n_gpus()
    kinds = [k for k in servers.KINDS if k.name in asked and (k.n_gpus or k.world_size) <= n_gpus]
    started = time.monotonic()
    running = {kind.name: servers.launch(kind, checkpoints, base) for kind in kinds}
    try:
        for server in running.values():
            server.wait(deadline=started + float(os.environ.get("DSV41_GPU_BOOT_S", "330")))
        figures["ready_s"] = {name: round(server.ready_s, 1) for name, server in running.items() if not server.problem}
        figures["not_ready"] = {name: server.problem for name, server in running.items() if server.problem}
        yield running
    finally:
        for server in running.values():
            server.stop()


@pytest.fixture
def server_of(fleet: dict[str, Any]) -> Any:
    def find(name: str) -> Any:
        if name not in fleet:
            pytest.skip(f"DSV41_GPU_SERVERS left {name} out, or this machine has too few GPUs for it")
        server = fleet[name]
        assert server.problem is None, server.problem
        return server

    return find
