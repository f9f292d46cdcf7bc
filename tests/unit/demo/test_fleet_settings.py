"""The demo's settings are a real fleet's settings: checked by the same models, on any network the demo builds."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.demo.addresses import plan
from dsv41_supervisor.demo.fleet_settings import (
    Ports,
    choose_ports,
    demo_settings,
    ensure_keys,
    omp_threads_bind,
)
from dsv41_supervisor.demo.network import Mode, Network, Probe
from dsv41_supervisor.errors import Dsv41Error, Exit, Refused
from dsv41_supervisor.settings import EngineKind, Settings, parse


def document(
    n_nodes: int, mode: Mode, root: Path, engine: EngineKind, tp: int | None = None, **more: Any
) -> dict[str, Any]:
    """Settings for a network that is planned but not built."""
    network = Network(n_nodes, Probe(mode, "test"))
    if mode is Mode.NAMESPACES:
        from ipaddress import IPv4Network

        network.nodes = plan(n_nodes, IPv4Network("10.41.0.0/16"))
    else:
        network.open()
        network.close()
    return demo_settings(
        network,
        state_root=root,
        tp=tp or n_nodes,
        nodes=n_nodes,
        engine=engine,
        engine_python=root / "python",
        demo_dir=root / "demo",
        checkpoint_dir=root / "checkpoint",
        revision="0123456789abcdef",
        ports=Ports(),
        **more,
    )


def settings(*args: Any, **more: Any) -> Settings:
    return parse(json.dumps(document(*args, **more)))


@pytest.mark.parametrize("engine", list(EngineKind))
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("n_nodes", [1, 2, 3, 4])
def test_every_demo_fleet_passes_the_settings_of_a_real_one(
    n_nodes: int, mode: Mode, engine: EngineKind, tmp_path: Path
) -> None:
    made = settings(n_nodes, mode, tmp_path, engine)
    assert made.fleet.in_rank_order == [f"spark{i + 1}" for i in range(n_nodes)]
    assert made.gateway.address == made.fleet.nodes["spark1"].management_address
    assert set(made.adapters_asked) == ({"engram_nvme"} if engine is EngineKind.SGLANG else set())
    n_rails = {1: 0, 2: 1, 3: 2, 4: 1}[n_nodes] if mode is Mode.NAMESPACES else 0
    assert {len(node.rails) for node in made.fleet.nodes.values()} == {n_rails}
    engine_ports = {node.engine_port for node in made.fleet.nodes.values()}
    assert len(engine_ports) == (n_nodes if mode is Mode.LOOPBACK else 1)
    assert made.state_dir("spark1") != made.run_dir("spark1") != made.rows_dir("spark1")


def test_tp_that_is_not_the_number_of_nodes_is_refused_by_the_settings(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="engine.parallelism.tp_size is 4, but fleet.nodes has 3"):
        settings(3, Mode.NAMESPACES, tmp_path, EngineKind.SGLANG, tp=4)


def test_sglang_on_cpu_gets_one_core_entry_a_rank(tmp_path: Path) -> None:
    made = settings(3, Mode.NAMESPACES, tmp_path, EngineKind.SGLANG, cache_dir=tmp_path / "cache")
    assert made.engine.omp_threads_bind == omp_threads_bind(3)
    assert len(omp_threads_bind(7).split("|")) == 7
    assert made.engine.environment["SGLANG_CACHE_DIR"] == str(tmp_path / "cache")


def test_the_scripted_engine_gets_its_script(tmp_path: Path) -> None:
    made = settings(1, Mode.LOOPBACK, tmp_path, EngineKind.SCRIPTED, script=tmp_path / "script.json")
    assert made.engine.environment == {"DSV41_SCRIPT": str(tmp_path / "script.json")}
    assert made.engine.external_model_package is None


@pytest.fixture
def loopback() -> Iterator[Network]:
    network = Network(2, Probe(Mode.LOOPBACK, "test"))
    with network:
        yield network


def test_a_taken_port_is_named_when_asked_for_and_stepped_over_when_not(loopback: Network) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.41.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Dsv41Error, match=f"port {port} on 127.0.41.1, .* is taken.*name another port") as caught:
            choose_ports(loopback, gateway=port)
        assert caught.value.exit_status is Exit.UNAVAILABLE
    chosen = choose_ports(loopback)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", chosen.engine + 1))
        taken.listen()
        assert choose_ports(loopback).engine == chosen.engine + 2


def test_keys_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    keys = ensure_keys(tmp_path / "state")
    assert ensure_keys(tmp_path / "state") == keys
    assert keys.api_keys_file.read_text() == f"demo:{keys.api_key}\n"
    assert len(keys.fleet_key_file.read_text().strip()) >= 32
    assert {stat.S_IMODE(path.stat().st_mode) for path in (keys.fleet_key_file, keys.api_keys_file)} == {0o600}
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["api-keys", "fleet.key"]
