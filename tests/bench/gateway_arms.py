"""What the gateway's benchmark measures: nothing in between, our gateway, nginx and LiteLLM's proxy, each one worker.

Each is set up as its own documentation says for production, with logs and telemetry off, and may use every core:
nothing is pinned. LiteLLM lives in an environment of its own, `.demo/bench-litellm` (`--install` makes it).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.gateway_load import asking
from tests.bench.gateway_upstream import MODEL
from tests.harness.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("direct", "dsv41", "nginx", "litellm")
KEY = "sk-a-key-of-the-benchmark-0123456789"
START_S = 120.0
LITELLM = ROOT / ".demo" / "bench-litellm"
LITELLM_VERSION = "1.108.7"
"""The newest whose `[proxy]` parts could all be installed where the figures of GATEWAY.md were made."""
LITELLM_PARTS = ("opentelemetry-sdk", "opentelemetry-exporter-otlp", "prisma", "httptools")
"""Without the first three, which its image has and `[proxy]` does not, it looks for them in vain at every request; the
last is the parser in C that its server takes where it finds it."""

_FOR_EVER = 1_000_000_000
_NGINX = """worker_processes 1; daemon off; pid {here}/nginx.pid; error_log {here}/nginx.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {here}/body; proxy_temp_path {here}/proxy; fastcgi_temp_path {here}/f;
  uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;
  keepalive_requests {for_ever};
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 256; keepalive_requests {for_ever}; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""
"""nginx closes a connection after a thousand requests unless told otherwise; the other arms never do."""


class Missing(Exception):
    """This arm is not installed here."""


@dataclass(frozen=True)
class Arm:
    """Where to ask, and whose processor time and memory it costs (none for the upstream itself)."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    version: str
    costs: bool = True

    def processes(self) -> list[int]:
        """Itself and all that it started."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError):  # a thread that ended meanwhile
                    found += [int(child) for child in (task / "children").read_text().split()]
        return found

    def cpu_s(self) -> float:
        return sum(map(_cpu_s, self.processes()))

    def memory_bytes(self) -> int:
        return sum(map(_memory_bytes, self.processes()))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


@contextlib.contextmanager
def _started(argv: list[str], log: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=ROOT, env=env)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _until_it_answers(arm: Arm) -> None:
    deadline = time.monotonic() + START_S
    why: Exception | None = None
    while time.monotonic() < deadline:
        assert arm.process.poll() is None, f"{arm.name} ended:\n{arm.log.read_text()[-2000:]}"
        try:
            await (await asking(arm.port, KEY, MODEL, 1)).over
            return
        except (OSError, EOFError, ValueError) as error:
            why = error
        await asyncio.sleep(0.1)
    raise AssertionError(f"{arm.name} did not answer within {START_S:g} s ({why}):\n{arm.log.read_text()[-2000:]}")


def settings(here: Path, supervisor_port: int, port: int) -> dict[str, Any]:
    for name, text in (("api-keys", f"bench:{KEY}\n"), ("fleet-key", "f" * 64 + "\n")):
        (here / name).write_text(text)
        (here / name).chmod(0o600)
    return {
        "fleet": {
            "name": "bench", "topology": "switched", "key_file": str(here / "fleet-key"),
            "nodes": {"spark1": {"rank": 0, "management_address": "127.0.0.1", "management_interface": "lo",
                                 "supervisor_port": supervisor_port}},
        },
        "checkpoint": {"path": str(here), "revision": "0" * 40},
        "engine": {"python": sys.executable, "device": "cpu", "parallelism": {"tp_size": 1},
                   "served_model_name": MODEL, "memory": {"max_running_requests": 256}},
        "gateway": {"port": port, "keys_file": str(here / "api-keys")},
    }  # fmt: skip


def _ours(here: Path, supervisor: int, port: int) -> tuple[list[str], str]:
    (here / "settings.json").write_text(json.dumps(settings(here, supervisor, port)))
    argv = [sys.executable, "-m", "dsv41_supervisor", "gateway", "--settings", str(here / "settings.json")]
    last_change = ["git", "log", "-1", "--format=%h", "--", "supervisor/dsv41_supervisor"]
    version = subprocess.run(last_change, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return [*argv, "--node", "spark1"], version


def _nginx(here: Path, engine: int, port: int) -> tuple[list[str], str]:
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if nginx is None:
        raise Missing("no command nginx: install nginx-light")
    (here / "nginx.conf").write_text(_NGINX.format(here=here, engine=engine, port=port, for_ever=_FOR_EVER))
    said = subprocess.run([nginx, "-v"], capture_output=True, text=True).stderr
    return [nginx, "-c", str(here / "nginx.conf")], said.strip().rpartition("/")[2]


def _litellm(here: Path, engine: int, port: int) -> tuple[list[str], str]:
    litellm = LITELLM / "bin" / "litellm"
    if not litellm.exists():
        raise Missing(f"no {litellm}: run the benchmark with --install")
    (here / "litellm.yaml").write_text(json.dumps({
        "model_list": [{"model_name": MODEL, "litellm_params": {
            "model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{engine}/v1", "api_key": "none"}}],
        "litellm_settings": {"num_retries": 0, "request_timeout": 600, "telemetry": False},
        "general_settings": {"master_key": KEY}}))  # fmt: skip
    argv = [str(litellm), "--config", str(here / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    version = next(LITELLM.glob("lib/python*/site-packages/litellm-*.dist-info")).name.split("-")[1]
    return [*argv, "--num_workers", "1"], version.removesuffix(".dist")


def _environment() -> dict[str, str]:
    """LiteLLM's: logs off, its price list from its own package, and no look for a proxy at every request."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**kept, "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "DISABLE_AIOHTTP_TRUST_ENV": "True"}  # fmt: skip


async def start(here: Path, names: tuple[str, ...], stack: contextlib.ExitStack) -> tuple[list[Arm], dict[str, str]]:
    """The arms, each answering, and why others are missing. The upstream is always there."""
    others = (("dsv41", _ours), ("nginx", _nginx), ("litellm", _litellm))
    engine, supervisor = free_port(), free_port()
    upstream = [sys.executable, "tests/bench/gateway_upstream.py", str(engine), str(supervisor)]
    process = stack.enter_context(_started(upstream, here / "upstream.log"))
    arms, missing = [Arm("direct", engine, process, here / "upstream.log", "", costs=False)], {}
    await _until_it_answers(arms[0])
    for name, prepare in others:
        if name not in names:
            continue
        port, log = free_port(), here / f"{name}-start.log"
        try:
            argv, version = prepare(here, supervisor if name == "dsv41" else engine, port)
        except Missing as error:
            missing[name] = str(error)
            continue
        env = _environment() if name == "litellm" else None
        arms.append(Arm(name, port, stack.enter_context(_started(argv, log, env)), log, version))
        await _until_it_answers(arms[-1])
    return arms, missing


def install() -> None:
    """LiteLLM's proxy, in an environment of its own: it brings 750 MB of other packages."""
    venv.create(LITELLM, with_pip=True, clear=True)
    wanted = [f"litellm[proxy]=={LITELLM_VERSION}", *LITELLM_PARTS]
    subprocess.run([LITELLM / "bin" / "pip", "install", "-q", *wanted], check=True, stdout=sys.stderr)
