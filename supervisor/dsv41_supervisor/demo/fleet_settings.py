"""Settings of the demo's fleet: the same tree as a real fleet's, on this machine's network and small.

Says what the demo is made of; what does not fit together (`--tp` and `--nodes`, say) is refused by Settings itself.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Dsv41Error, Stage
from ..settings.engine import EngineKind
from .network import Mode, Network

FLEET_NAME = "demo"
MODEL_PACKAGE = "dsv41_demo_model"
SERVED_MODEL_NAME = "deepseek-v4.1-flash-demo"
CONTEXT_LENGTH = 4096
"""max_position_embeddings of the demo's checkpoint."""
N_RENDEZVOUS_PORTS = 64


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of a demo. On loopback node N takes `engine` + N; with namespaces every node has the same."""

    supervisor: int = 7141
    engine: int = 30000
    gateway: int = 8888
    rendezvous: int = 20000


@dataclass(frozen=True, slots=True)
class Keys:
    """The demo's two secrets, each in a file that only this user reads."""

    fleet_key_file: Path
    api_keys_file: Path
    api_key: str


def choose_ports(network: Network, gateway: int | None = None) -> Ports:
    """Ports that are free now. Raises Dsv41Error (69) when the one asked for is taken.

    A namespace is ours alone, so nothing can be taken there.
    """
    wanted = Ports() if gateway is None else Ports(gateway=gateway)
    if network.mode is Mode.NAMESPACES:
        return wanted
    everywhere = [str(node.management.ip) for node in network.nodes]
    if gateway is not None and not _free(everywhere[0], gateway):
        raise Dsv41Error(
            f"port {gateway} on {everywhere[0]}, which the gateway was to listen on, is taken.",
            stage=Stage.GATEWAY,
            hint="Stop what listens there (ss -ltnp shows it), or name another port.",
            transient=True,
        )
    n = len(network.nodes)
    return Ports(
        supervisor=_first_free(wanted.supervisor, 1, everywhere),
        engine=_first_free(wanted.engine, n, ["127.0.0.1"]),
        gateway=gateway if gateway is not None else _first_free(wanted.gateway, 1, everywhere[:1]),
        # SGLang's rendezvous listens on every address of the node.
        rendezvous=_first_free(wanted.rendezvous, N_RENDEZVOUS_PORTS, ["0.0.0.0"]),
    )


def ensure_keys(state_root: Path) -> Keys:
    """Make the fleet key and one API key, or read those that are there."""
    fleet_key_file, api_keys_file = state_root / "fleet.key", state_root / "api-keys"
    state_root.mkdir(parents=True, exist_ok=True)
    if not fleet_key_file.exists():
        _write_secret(fleet_key_file, secrets.token_hex(32) + "\n")
    if not api_keys_file.exists():
        _write_secret(api_keys_file, f"demo:sk-demo-{secrets.token_hex(16)}\n")
    for line in api_keys_file.read_text().splitlines():
        name, _, key = line.strip().partition(":")
        if name and key and not name.startswith("#") and not key.startswith("sha256:"):
            return Keys(fleet_key_file, api_keys_file, key)
    raise Dsv41Error(
        f"{api_keys_file} holds no plain key, and the demo needs one to ask its first question.",
        stage=Stage.GATEWAY,
        hint="Delete the file; the next run makes one.",
    )


def demo_settings(
    network: Network,
    *,
    state_root: Path,
    tp: int,
    nodes: int,
    engine: EngineKind,
    engine_python: Path,
    demo_dir: Path,
    checkpoint_dir: Path,
    revision: str,
    ports: Ports,
    script: Path | None = None,
    cache_dir: Path | None = None,
) -> dict[str, Any]:
    """The settings document of the demo's fleet, not yet checked.

    `network` is open and has `nodes` nodes. `script` is the behaviour of a scripted engine. `cache_dir` keeps what
    torch compiles, so that the next start need not; null leaves it to SGLang (~/.cache/sglang).
    """
    assert nodes == len(network.nodes), (nodes, network.nodes)
    by_node = f"{state_root}/{{node}}"
    return {
        "fleet": {
            "name": FLEET_NAME,
            "topology": str(network.topology),
            "mtu": 9000,
            "key_file": str(state_root / "fleet.key"),
            "nodes": {
                node.name: {
                    "rank": node.rank,
                    "management_address": str(node.management.ip),
                    "management_interface": node.management_interface,
                    "supervisor_port": ports.supervisor,
                    "engine_port": ports.engine + (node.rank if network.mode is Mode.LOOPBACK else 0),
                    "rails": {
                        name: {"interface": end.interface, "address": str(end.address), "peer": end.peer}
                        for name, end in node.rails.items()
                    },
                }
                for node in network.nodes
            },
        },
        "checkpoint": {"path": str(checkpoint_dir), "repo": "dsv41-demo", "revision": revision},
        "share": {"mode": "local"},
        # Two small tables: a cache that holds a part of them, so that the drive is read as on a real fleet.
        "pack": {"directory": f"{by_node}/rows", "cache_bytes": 1 << 20},
        "engine": _engine(tp, nodes, engine, engine_python, demo_dir, ports, script, cache_dir),
        "adapters": {"engram_nvme": {}} if engine is EngineKind.SGLANG else {},
        "gateway": {
            "address": str(network.gateway_address),
            "port": ports.gateway,
            "keys_file": str(state_root / "api-keys"),
            "max_tokens_cap": CONTEXT_LENGTH // 4,
        },
        # A rank on CPU cannot hang the machine as an out-of-memory GB10 does: small, but not off.
        "guard": {"floor_bytes": 256 << 20},
        "recovery": {"max_recoveries": 10, "backoff_s": 1, "stop_timeout_s": 15},
        "supervisor": {"units": "process", "state_dir": f"{by_node}/supervisor", "run_dir": f"{by_node}/run"},
    }


def _engine(
    tp: int,
    nodes: int,
    kind: EngineKind,
    python: Path,
    demo_dir: Path,
    ports: Ports,
    script: Path | None,
    cache_dir: Path | None,
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "kind": str(kind),
        "profile": "demo",
        "python": str(python),
        "device": "cpu",
        "served_model_name": SERVED_MODEL_NAME,
        "context_length": CONTEXT_LENGTH,
        "parallelism": {"tp_size": tp},
        "rendezvous": {"first_port": ports.rendezvous, "n_ports": N_RENDEZVOUS_PORTS},
    }
    if kind is EngineKind.SCRIPTED:
        environment = {} if script is None else {"DSV41_SCRIPT": str(script)}
        return settings | {"python_path": [str(demo_dir)], "environment": environment}
    environment = {
        # No compiler of Rust and no network are needed or wanted at start.
        "SGLANG_RUST_BUILD_MODE": "never",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    if cache_dir is not None:
        environment["SGLANG_CACHE_DIR"] = str(cache_dir)
    return settings | {
        "python_path": [str(demo_dir), str(demo_dir / "shims")],
        "external_model_package": MODEL_PACKAGE,
        "dtype": "bfloat16",
        "memory": {"mem_fraction_static": 0.3, "max_total_tokens": 8192},
        "backends": {"attention": "torch_native"},
        "overlap_schedule": False,
        "omp_threads_bind": omp_threads_bind(nodes),
        "environment": environment,
    }


def omp_threads_bind(n_ranks: int) -> str:
    """One core a rank, in turn: SGLang on CPU asserts that there is one entry for each (facts: engine.md §3.2)."""
    cores = sorted(os.sched_getaffinity(0))
    return "|".join(str(cores[rank % len(cores)]) for rank in range(n_ranks))


def _free(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def _first_free(start: int, n_ports: int, addresses: list[str]) -> int:
    """First of `n_ports` ports in a row that are free on every address, from `start` upwards."""
    for first in range(start, min(start + 4096, 65536 - n_ports)):
        if all(_free(address, first + i) for address in addresses for i in range(n_ports)):
            return first
    raise Dsv41Error(
        f"no {n_ports} free ports in a row between {start} and {start + 4096}.",
        stage=Stage.CONFIG,
        hint="Stop what listens there (ss -ltnp shows it).",
        transient=True,
    )


def _write_secret(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)
