"""Real SGLang ranks on this machine's CPU, each with its plan, log and reports, for tests to ask."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsv41_adapters.report import ArmedReport, read_counters, read_reports
from dsv41_rowstore import Partition, pack_layer

from tests.engine.drive import Drive
from tests.harness.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BOOT = "20261129T221500-4f1c9a2e"
BOOT_S = 480.0
"""Bound of a boot. TP1 takes 25 s and TP3 60 s on two idle cores, several times that on busy ones."""
LAYERS = (1, 14)


@dataclass(frozen=True)
class Answer:
    """Greedy tokens and their log-probabilities."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    n_cached: int


def engine_environment() -> dict[str, str]:
    """What the demo's engine needs on a CPU, and nothing of the test's environment that could change it."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME")}
    return kept | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_RUST_BUILD_MODE": "never",
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        # torch's CUDA build brings an NCCL, which SGLang would use between ranks even on a CPU; no such file, no NCCL.
        "SGLANG_NCCL_SO_PATH": "/dev/null",
        "PYTHONPATH": f"{ROOT / 'demo' / 'shims'}:{ROOT / 'demo'}",
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "dsv41_demo_model",
        "SGLANG_PLUGINS": "dsv41",
        "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES": "1",
        "SGLANG_REQUEST_STATE_WAIT_TIMEOUT": "1",
    }


def pack_rows(checkpoint: Path, directory: Path, *, world_size: int, partition: str, revision: str) -> None:
    """Every rank's files of both layers into one directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for layer in LAYERS:
        for rank in range(world_size):
            pack_layer(
                checkpoint, directory, layer=layer, rank=rank, world_size=world_size,
                partition=Partition(partition), revision=revision,
            )  # fmt: skip


def without_tables(checkpoint: Path, target: Path) -> Path:
    """The checkpoint as a rank with packed rows may see it: the two table files are there and empty."""
    target.mkdir()
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    tables = {file for name, file in index["weight_map"].items() if ".engram.embed." in name}
    assert len(tables) == 2
    for file in checkpoint.iterdir():
        if file.name in tables:
            (target / file.name).touch()
        else:
            (target / file.name).symlink_to(file)
    return target


def write_plan(
    directory: Path,
    *,
    rank: int = 0,
    world_size: int = 1,
    rows: Path | None = None,
    partition: str = "balanced",
    revision: str | None = None,
    adapters: dict[str, Any] | None = None,
    cache_bytes: int = 1 << 20,
    reader: str = "auto",
    checkpoint: Path | None = None,
) -> Path:
    """A rank's plan as the supervisor writes it. `adapters` None asks for engram_nvme when there are rows."""
    directory.mkdir(parents=True, exist_ok=True)
    asked = adapters if adapters is not None else {"engram_nvme": {}} if rows else {}
    document = {
        "format": 1,
        "node": f"spark{rank + 1}",
        "rank": rank,
        "world_size": world_size,
        "boot": BOOT,
        "report_dir": str(directory),
        "adapters": asked,
        "rows": None
        if rows is None
        else {
            "directory": str(rows),
            "partition": partition,
            "revision": revision,
            "cache_bytes": cache_bytes,
            "ways": 16,
            "engine": reader,
        },
        "checkpoint": None if checkpoint is None else {"path": str(checkpoint), "revision": revision or "demo"},
        "launch": "demo",
    }
    path = directory / "plan.json"
    path.write_text(json.dumps(document))
    return path


@dataclass
class Rank:
    """One launcher with its scheduler and detokenizer."""

    number: int
    port: int
    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        return (self.directory / "engine.log").read_text(errors="replace")

    def tail(self, n_lines: int = 30) -> str:
        return "\n".join(line[:300] for line in self.log.splitlines()[-n_lines:])


@dataclass
class Engine:
    """The ranks of one fleet; ask rank 0."""

    world_size: int
    ranks: list[Rank] = field(default_factory=list)
    ready_s: float = 0.0

    def wait_ready(self) -> None:
        """Until /ready of rank 0; fails with the log when a rank ends first or time runs out."""
        started = time.monotonic()
        while time.monotonic() - started < BOOT_S:
            for rank in self.ranks:
                if rank.process.poll() is not None:
                    raise AssertionError(f"rank {rank.number} ended with {rank.process.returncode}:\n{rank.tail()}")
            with contextlib.suppress(OSError):
                self._open("/ready", None, timeout_s=5)
                self.ready_s = time.monotonic() - started
                return
            time.sleep(0.25)
        raise AssertionError(f"not ready after {BOOT_S:.0f} s:\n{self.ranks[0].tail()}")

    def _open(self, path: str, body: dict[str, Any] | None, *, timeout_s: float = 120) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ranks[0].port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=timeout_s)

    def status(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """What an answer that may be an error is: its HTTP status and its text."""
        try:
            with self._open(path, body) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, which is refused while a request runs."""
        deadline = time.monotonic() + 120
        while (refused := self.status("/flush_cache", {}))[0] != 200:
            assert time.monotonic() < deadline, f"the prefix cache could not be emptied in 120 s: {refused}"
            time.sleep(0.1)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        try:
            with self._open(path, body) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()[:500]}") from None

    def generate(self, prompt: str, n_tokens: int) -> Answer:
        """The greedy continuation of one prompt."""
        sampling = {"max_new_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
        answer = self.post("/generate", {"text": prompt, "sampling_params": sampling, "return_logprob": True})
        meta = answer["meta_info"]
        return Answer(
            ids=tuple(entry[1] for entry in meta["output_token_logprobs"]),
            logprobs=tuple(entry[0] for entry in meta["output_token_logprobs"]),
            text=answer["text"],
            n_cached=meta["cached_tokens"],
        )

    def chat(self, content: str = "What is a spark?", **body: Any) -> dict[str, Any]:
        return self.post("/v1/chat/completions", chat_body(content, **body))

    def stream(self, content: str = "What is a spark?", **body: Any) -> Iterator[dict[str, Any]]:
        with self._open("/v1/chat/completions", chat_body(content, stream=True, **body)) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    yield json.loads(line.removeprefix(b"data: "))

    def reports(self, rank: int = 0) -> list[ArmedReport]:
        return read_reports(self.ranks[rank].directory, BOOT)

    def counters(self, rank: int = 0) -> dict[str, int]:
        return read_counters(self.ranks[rank].directory, BOOT)

    def settled_counters(self) -> list[dict[str, int]]:
        """Counters of every rank once they stand still: a worker finishes its step a little after rank 0 answered."""
        ranks = range(self.world_size)
        before, deadline = None, time.monotonic() + 120
        while time.monotonic() < deadline:
            now = [self.counters(rank) for rank in ranks]
            if now == before:
                return now
            before = now
            time.sleep(0.5)
        raise AssertionError("the ranks still count 120 s after the last answer")

    def stop(self) -> None:
        """Kill every process; multiprocessing's resource trackers then tidy up and end by themselves."""
        groups = {rank.process.pid for rank in self.ranks}
        for pid, command in _members(groups).items():
            if "resource_tracker" not in command:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for rank in self.ranks:
            rank.process.wait(timeout=30)
        deadline = time.monotonic() + 30
        while left := _members(groups):
            assert time.monotonic() < deadline, f"still running 30 s after SIGKILL: {left}"
            time.sleep(0.05)


def _members(groups: set[int]) -> dict[int, str]:
    """Living processes of these process groups, with their command lines."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group) in groups and state != "Z":
                found[int(stat.parent.name)] = (stat.parent / "cmdline").read_text().replace("\0", " ")
    return found


def chat_body(content: str, **body: Any) -> dict[str, Any]:
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 12,
        **body,
    }


def launch_rank(
    python: Path,
    checkpoint: Path,
    directory: Path,
    *,
    rank: int,
    world_size: int,
    rendezvous: int,
    plan: Path | None,
    more: dict[str, str] | None = None,
) -> Rank:
    """Start one rank; does not wait. `plan` None starts it as somebody would who never heard of us."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    environment = engine_environment() | {
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(i % (os.cpu_count() or 1)) for i in range(world_size))
    }
    environment |= more or {}
    if plan is not None:
        environment["DSV41_RANK_PLAN"] = str(plan)
    argv = [
        str(python), "-m", "sglang.launch_server",
        "--model-path", str(checkpoint), "--served-model-name", "demo",
        "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--attention-backend", "torch_native",
        "--disable-overlap-schedule", "--dtype", "bfloat16", "--max-total-tokens", "8192",
        "--mem-fraction-static", "0.3", "--chunked-prefill-size", "64", "--random-seed", "0",
        "--tp-size", str(world_size), "--nnodes", str(world_size), "--node-rank", str(rank),
        "--dist-init-addr", f"127.0.0.1:{rendezvous}", "--watchdog-timeout", "600", "--sleep-on-idle",
        "--enable-cache-report", "--enable-metrics", "--reasoning-parser", "deepseek-v41",
        "--tool-call-parser", "deepseekv41",
    ]  # fmt: skip
    with open(directory / "engine.log", "wb") as log:
        process = subprocess.Popen(
            argv, env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    return Rank(rank, port, directory, process)


@contextlib.contextmanager
def running(
    python: Path,
    checkpoint: Path,
    directory: Path,
    *,
    world_size: int,
    rows: Path | None = None,
    partition: str = "balanced",
    revision: str | None = None,
    with_plan: bool = True,
    adapters: dict[str, Any] | None = None,
    cache_bytes: int = 1 << 20,
    reader: str = "auto",
    drives: dict[int, Drive] | None = None,
) -> Iterator[Engine]:
    """A fleet that is ready, and gone afterwards. `drives`: what a rank reads its rows from, if not this machine's."""
    engine = Engine(world_size)
    rendezvous = free_port()
    try:
        for number in range(world_size):
            here = directory / f"rank-{number}"
            plan = None
            if with_plan:
                plan = write_plan(
                    here,
                    rank=number,
                    world_size=world_size,
                    rows=rows,
                    partition=partition,
                    revision=revision,
                    adapters=adapters,
                    cache_bytes=cache_bytes,
                    reader=reader,
                    checkpoint=checkpoint,
                )
            drive = (drives or {}).get(number)
            engine.ranks.append(
                launch_rank(
                    python,
                    checkpoint,
                    here,
                    rank=number,
                    world_size=world_size,
                    rendezvous=rendezvous,
                    plan=plan,
                    more=None if drive is None else drive.environment,
                )
            )
        engine.wait_ready()
        yield engine
    finally:
        engine.stop()
