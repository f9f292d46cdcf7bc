"""What the gateway adds to a request and to streams, side by side with no gateway at all, nginx and LiteLLM's proxy.

    make bench NAME=gateway [ARGS="--quick"]

A scripted upstream in a process of its own answers; this process asks, over kept connections, the arms taking turns.
nginx and LiteLLM are measured where they are installed, and reported as missing otherwise. Prints one JSON object:
conditions, every goal with its figure and whether it holds, and all measurements. Load, upstream and gateway share this
machine's cores; the ratios between arms are what holds elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.gateway_load import Connection, Streams, throughput  # noqa: E402
from tests.bench.gateway_upstream import MODEL, RATE  # noqa: E402
from tests.harness.ports import free_port  # noqa: E402

KEY = "a-key-of-the-benchmark-0123456789"
START_S = 60.0
N_STREAMS = 64
P50_GOAL_MS, P99_GOAL_MS = 0.5, 3.0
CORE_GOAL, DELAY_GOAL_MS = 0.25, 20.0
RSS_GOAL_BYTES, STREAM_GOAL_BYTES = 60e6, 100e3
LITELLM_GOAL = 5.0
_NGINX = """worker_processes 1; daemon off; pid {here}/nginx.pid; error_log {here}/nginx.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {here}/body; proxy_temp_path {here}/proxy; fastcgi_temp_path {here}/f;
  uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 256; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Arm:
    """Where to ask, and whose processor time and memory it costs (none for the upstream itself)."""

    name: str
    port: int
    pid: int | None


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


@contextlib.contextmanager
def started(argv: list[str], log: Path, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=ROOT, **more)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def until_it_answers(arm: Arm, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"{arm.name} ended:\n{log.read_text()[-2000:]}"
        with contextlib.suppress(OSError, EOFError):
            connection = await Connection.open(arm.port, KEY, MODEL)
            status = await connection.whole()
            connection.close()
            if status == 200:
                return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{arm.name} did not answer within {START_S:g} s:\n{log.read_text()[-2000:]}")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


def worker_of(master: int) -> int:
    """nginx serves in a child of its own."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.05)
    raise AssertionError("nginx has no worker")


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def latencies(arms: list[Arm], n: int, turns: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a whole one-token request on one kept connection; the arms take turns."""
    taken: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for _ in range(turns):
        for arm in arms:
            connection = await Connection.open(arm.port, KEY, MODEL)
            for i in range(n + n // 10):
                began = time.perf_counter()
                assert await connection.whole() == 200
                if i >= n // 10:
                    taken[arm.name].append((time.perf_counter() - began) * 1e3)
            connection.close()
    return {
        name: {"p50_ms": round(statistics.median(t), 3), "p99_ms": round(percentile(t, 0.99), 3), "n": len(t)}
        for name, t in taken.items()
    }


async def streaming(arm: Arm, n_streams: int, seconds: float) -> dict[str, float | int | None]:
    """Many streams at once: how late each event is against the time it was sent at, and what the arm costs."""
    before_bytes = memory_bytes(arm.pid) if arm.pid is not None else 0
    streams = Streams(arm.port, KEY, MODEL, n_streams, int(seconds * RATE))
    running = asyncio.ensure_future(streams.run())
    await asyncio.sleep(seconds * 0.2)
    began, cpu_before = time.monotonic(), cpu_s(arm.pid) if arm.pid is not None else 0.0
    await asyncio.sleep(seconds * 0.6)
    took_s, during_bytes = time.monotonic() - began, memory_bytes(arm.pid) if arm.pid is not None else 0
    core = (cpu_s(arm.pid) - cpu_before) / took_s if arm.pid is not None else None
    await running
    late = streams.late_ms
    assert len(late) == n_streams * int(seconds * RATE), f"{arm.name}: {len(late)} events came through"
    return {
        "streams": n_streams, "events_a_second": n_streams * RATE, "events": len(late),
        "late_p50_ms": round(statistics.median(late), 2), "late_p99_ms": round(percentile(late, 0.99), 2),
        "of_one_core": round(core, 3) if core is not None else None,
        "bytes_a_stream": round((during_bytes - before_bytes) / n_streams) if arm.pid is not None else None,
    }  # fmt: skip


async def measure(arms: list[Arm], quick: bool) -> dict[str, Any]:
    seconds, turns = (3.0, 2) if quick else (10.0, 5)
    found: dict[str, Any] = {"rss_idle_bytes": {arm.name: memory_bytes(arm.pid) for arm in arms if arm.pid is not None}}
    found["one_token"] = await latencies(arms, 200 if quick else 1000, turns)
    found["requests_a_second"] = {
        arm.name: round(statistics.median([await throughput(arm.port, KEY, MODEL, 32, seconds / 3) for _ in range(3)]))
        for arm in arms
    }
    found["streams"] = {arm.name: await streaming(arm, N_STREAMS, seconds) for arm in arms}
    return found


def goals(found: dict[str, Any]) -> list[dict[str, Any]]:
    direct, ours = found["one_token"]["direct"], found["one_token"]["dsv41"]
    streams = found["streams"]["dsv41"]
    figures: list[tuple[str, float, float]] = [
        ("added to a one-token request, p50 ms", ours["p50_ms"] - direct["p50_ms"], P50_GOAL_MS),
        ("added to a one-token request, p99 ms", ours["p99_ms"] - direct["p99_ms"], P99_GOAL_MS),
        ("of one core for 64 streams", streams["of_one_core"], CORE_GOAL),
        ("an event late at p99, ms", streams["late_p99_ms"], DELAY_GOAL_MS),
        ("memory at rest, bytes", found["rss_idle_bytes"]["dsv41"], RSS_GOAL_BYTES),
        ("memory a stream, bytes", streams["bytes_a_stream"], STREAM_GOAL_BYTES),
    ]
    told = [
        {"goal": what, "at_most": most, "is": round(is_, 3), "holds": is_ <= most} for what, is_, most in figures
    ]
    rates = found["requests_a_second"]
    if "litellm" in rates:
        ratio = rates["dsv41"] / rates["litellm"]
        told.append({"goal": "requests a second against LiteLLM's", "at_least": LITELLM_GOAL, "is": round(ratio, 2),
                     "holds": ratio >= LITELLM_GOAL})  # fmt: skip
    return told


async def run(quick: bool) -> dict[str, Any]:
    missing: dict[str, str] = {}
    async with contextlib.AsyncExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsv41-bench-")))
        engine, supervisor = free_port(), free_port()
        log = here / "upstream.log"
        upstream = stack.enter_context(
            started([sys.executable, "tests/bench/gateway_upstream.py", str(engine), str(supervisor)], log)
        )
        arms = [Arm("direct", engine, None)]
        await until_it_answers(arms[0], upstream, log)

        port, log = free_port(), here / "dsv41.log"
        (here / "settings.json").write_text(json.dumps(settings(here, supervisor, port)))
        argv = [sys.executable, "-m", "dsv41_supervisor", "gateway", "--settings", str(here / "settings.json"),
                "--node", "spark1"]  # fmt: skip
        process = stack.enter_context(started(argv, log))
        arms.append(Arm("dsv41", port, process.pid))
        await until_it_answers(arms[-1], process, log)

        if (nginx := shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")) is not None:
            port, log = free_port(), here / "nginx-start.log"
            (here / "nginx.conf").write_text(_NGINX.format(here=here, engine=engine, port=port))
            process = stack.enter_context(started([nginx, "-c", str(here / "nginx.conf")], log))
            arm = Arm("nginx", port, worker_of(process.pid))
            await until_it_answers(arm, process, log)
            arms.append(arm)
        else:
            missing["nginx"] = "not installed"

        if (litellm := shutil.which("litellm")) is not None:
            port, log = free_port(), here / "litellm.log"
            (here / "litellm.yaml").write_text(json.dumps({
                "model_list": [{"model_name": MODEL, "litellm_params": {
                    "model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{engine}/v1", "api_key": "none"}}],
                "general_settings": {"master_key": KEY}}))  # fmt: skip
            argv = [litellm, "--config", str(here / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]
            process = stack.enter_context(started(argv, log))
            arm = Arm("litellm", port, process.pid)
            await until_it_answers(arm, process, log)
            arms.append(arm)
        else:
            missing["litellm"] = "no command litellm on PATH"

        load_before = os.getloadavg()
        found = await measure(arms, quick)
    return {
        "conditions": {
            "machine": platform.machine(), "cores": os.cpu_count(), "kernel": platform.release(),
            "python": platform.python_version(), "load_average_before": load_before, "quick": quick,
        },
        "goals": goals(found), "not_measured": missing, **found,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer requests; the figures are rougher")
    print(json.dumps(asyncio.run(run(parser.parse_args().quick)), indent=2))


if __name__ == "__main__":
    main()
