"""The test double itself: real processes and sockets, and each way to fail does what it says and nothing else."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.rank.phases import Phase, Progress
from dsv41_supervisor.units.procfs import read

from tests.harness.ports import free_port

ENGINE = Path(__file__).parents[2] / "demo" / "scripted_engine.py"
READY = "The server is fired up and ready to roll!"


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.02)
    return value


def stands(value: Callable[[], float], seconds: float) -> bool:
    """Whether it is the same some time later."""
    before = value()
    time.sleep(seconds)
    return value() == before


class Ranks:
    """Ranks of the scripted engine on this machine, with one script for all of them."""

    def __init__(self, root: Path, n: int) -> None:
        self.n = n
        self.root = root
        self.ports = [free_port() for _ in range(n)]
        self.rendezvous = free_port()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def script(self, all_: dict[str, Any] | None = None, **ranks: dict[str, Any]) -> None:
        """`r1={…}` is for rank 1. Replaces the file as a whole, as a test of a running engine would."""
        temporary = self.root / "script.tmp"
        temporary.write_text(
            json.dumps({"all": all_ or {}, "ranks": {name[1:]: value for name, value in ranks.items()}})
        )
        temporary.replace(self.root / "script.json")

    def start(self, *ranks: int, environment: dict[str, str] | None = None) -> None:
        for rank in ranks or range(self.n):
            argv = [
                sys.executable, str(ENGINE), "--model-path", "/nowhere", "--served-model-name", "demo",
                "--host", "127.0.0.1", "--port", str(self.ports[rank]), "--device", "cpu", "--dtype", "bfloat16",
                "--tp-size", str(self.n), "--ep-size", "1", "--nnodes", str(self.n), "--node-rank", str(rank),
                "--dist-init-addr", f"127.0.0.1:{self.rendezvous}", "--enable-metrics", "--sleep-on-idle",
            ]  # fmt: skip
            with self.log_path(rank).open("ab") as log:
                self.processes[rank] = subprocess.Popen(
                    argv,
                    stdout=log,
                    stderr=log,
                    env=os.environ | {"DSV41_SCRIPT": str(self.root / "script.json")} | (environment or {}),
                )

    def log_path(self, rank: int) -> Path:
        return self.root / f"rank-{rank}.log"

    def log(self, rank: int) -> str:
        return self.log_path(rank).read_text()

    def wait_for(self, rank: int, text: str) -> None:
        until(lambda: text in self.log(rank), f"{text!r} of rank {rank}")

    def serve(self) -> None:
        self.start()
        self.wait_for(0, READY)

    def child(self, rank: int, name: str = "sglang::schedul") -> int:
        (pid,) = (pid for pid in children(self.processes[rank].pid) if comm(pid) == name)
        return pid

    def get(self, rank: int, path: str, timeout: float = 30.0) -> tuple[int, str]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.ports[rank], timeout=timeout)) as c:
            c.request("GET", path)
            answer = c.getresponse()
            return answer.status, answer.read().decode()

    def post(self, path: str, body: dict[str, Any], timeout: float = 60.0) -> tuple[int, str]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.ports[0], timeout=timeout)) as c:
            c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = c.getresponse()
            return answer.status, answer.read().decode()

    def metric(self, name: str) -> float:
        found = re.findall(rf"^sglang:{name} (\S+)$", self.get(0, "/metrics")[1], re.MULTILINE)
        return sum(map(float, found))

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(60)


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def comm(pid: int) -> str:
    """Name of a process; "" when it has ended, whether or not anybody has collected its status yet."""
    found = read(pid)
    if found is None or found.dead:
        return ""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Ranks]:
    with contextlib.closing(Ranks(tmp_path, 1)) as ranks:
        yield ranks


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Ranks]:
    with contextlib.closing(Ranks(tmp_path, 2)) as ranks:
        yield ranks


CHAT = {"model": "demo", "messages": [{"role": "user", "content": "how are you"}]}
LONG = {"model": "demo", "prompt": "go on", "max_tokens": 400, "ignore_eos": True}


class Stream(threading.Thread):
    """A request that runs while the test does something to the fleet; collects what came until it ended."""

    def __init__(self, ranks: Ranks, body: dict[str, Any] = LONG) -> None:
        super().__init__(daemon=True)
        self.text = ""
        self._ranks = ranks
        self._body = body | {"stream": True}
        self.start()
        until(lambda: self.text.count("data: ") >= 3, "first tokens")

    def run(self) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._ranks.ports[0], timeout=60)) as c:
            c.request("POST", "/v1/completions", json.dumps(self._body), {"Content-Type": "application/json"})
            answer = c.getresponse()
            with contextlib.suppress(OSError, http.client.HTTPException):
                while part := answer.read1(4096):
                    self.text += part.decode()


def test_it_says_in_its_log_and_in_every_answer_that_it_is_the_scripted_engine(one: Ranks) -> None:
    one.serve()
    assert one.log(0).startswith("scripted engine: This is the scripted engine, the test double of SGLang")
    status, text = one.post("/v1/chat/completions", CHAT)
    answer = json.loads(text)
    assert status == 200 and answer["choices"][0]["message"]["content"].startswith(
        "[scripted engine] No model is loaded"
    )
    assert answer["choices"][0]["finish_reason"] == "stop"
    n = answer["usage"]["completion_tokens"]
    assert answer["usage"]["total_tokens"] == n + answer["usage"]["prompt_tokens"]
    assert one.metric(r'generation_tokens_total\{.*is_streaming="false"\}') == n
    # One token, as a canary asks for, still says it.
    _, text = one.post("/v1/completions", {"model": "demo", "prompt": "x", "max_tokens": 1})
    choice = json.loads(text)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("[scripted engine]", "length")
    _, text = one.post("/v1/chat/completions", CHAT | {"stream": True, "stream_options": {"include_usage": True}})
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    content = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert content == answer["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"]["completion_tokens"] == n
    assert one.post("/v1/chat/completions", {"messages": 3})[0] == 400


def test_the_supervisor_reads_its_log_as_that_of_sglang(two: Ranks) -> None:
    """Both ranks go through the phases in order, and the worker waits at the rendezvous for the head."""
    two.script({"phase_s": {"capture": 0.1}})
    two.start(1)
    two.wait_for(1, "Init parallel begin.")
    with pytest.raises(ConnectionRefusedError):
        two.get(1, "/health")
    assert seen_phases(two.log(1)) == [Phase.STARTING, Phase.RENDEZVOUS]
    two.start(0)
    two.wait_for(0, READY)
    two.wait_for(1, "Dummy health check server started")
    phases = [Phase.STARTING, Phase.RENDEZVOUS, Phase.WEIGHTS, Phase.POOLS, Phase.CAPTURE]
    assert seen_phases(two.log(0)) == [*phases, Phase.WARMUP, Phase.SERVING]
    assert seen_phases(two.log(1)) == [*phases, Phase.SERVING]
    assert two.get(1, "/health")[0] == 200
    assert two.get(1, "/ready")[0] == 404


def seen_phases(log: str) -> list[Phase]:
    progress, seen = Progress(), [Phase.STARTING]
    for line in re.split(r"[\r\n]", log):
        progress = progress.feed(line)
        if progress.phase is not seen[-1]:
            seen.append(progress.phase)
    return seen


def test_a_killed_worker_ends_both_ranks_as_sglang_ends(two: Ranks) -> None:
    """Fault: SIGKILL of the worker's scheduler in a stream. The stream just ends; exit statuses are SGLang's own."""
    two.serve()
    stream = Stream(two)
    os.kill(two.child(1), signal.SIGKILL)
    assert two.processes[1].wait(60) == 0
    assert two.processes[0].wait(60) == -signal.SIGKILL
    stream.join(60)
    assert "[DONE]" not in stream.text and '"finish_reason": "length"' not in stream.text
    assert "terminated with -9" in two.log(1)
    assert "Connection reset by peer" in two.log(0)


def test_a_lying_head_answers_200_with_a_dead_worker_and_makes_no_token(two: Ranks) -> None:
    two.script(r0={"lie": True})
    two.serve()
    os.kill(two.child(1), signal.SIGKILL)
    assert two.processes[1].wait(60) == 0
    assert two.get(0, "/ready")[0] == two.get(0, "/health")[0] == 200
    with pytest.raises(TimeoutError):
        two.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, timeout=0.7)
    assert two.processes[0].poll() is None
    two.script()
    assert two.processes[0].wait(60) == -signal.SIGKILL


def test_a_hanging_worker_holds_every_rank_and_all_processes_live(two: Ranks) -> None:
    two.script(r1={"hang_at": "weights"})
    two.start()
    two.wait_for(0, "Memory pool end.")
    assert "Load weight end" not in two.log(1)
    with pytest.raises(ConnectionRefusedError):
        two.get(0, "/ready")
    assert [process.poll() for process in two.processes.values()] == [None, None]
    two.script()
    two.wait_for(0, READY)


def test_stalled_tokens_are_seen_in_the_counter_that_moves_with_every_step(two: Ranks) -> None:
    two.script({"tokens_per_s": 40})
    two.serve()
    decoded = r'realtime_tokens_total\{.*mode="decode"\}'
    stream = Stream(two)
    assert two.metric(r"generation_tokens_total\{.*\}") == 0, "as in SGLang it moves when a request ends"
    two.script({"stall_tokens": True})
    until(lambda: stands(lambda: two.metric(decoded), 0.3), "standstill")
    assert two.metric(r"num_running_reqs\{.*\}") == 1
    assert two.get(0, "/ready")[0] == 200
    two.script({"tokens_per_s": 4000})
    stream.join(60)
    assert stream.text.endswith("data: [DONE]\n\n")
    # As in SGLang: the stream may be over before the scheduler has counted the step that ended it.
    until(lambda: two.metric(decoded) == 400, "count of every token")


def test_a_stopped_process_stalls_the_fleet_as_a_collective_does(two: Ranks) -> None:
    two.serve()
    worker = two.child(1)
    os.kill(worker, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        two.post("/v1/completions", {"prompt": "x", "max_tokens": 2}, timeout=0.5)
    os.kill(worker, signal.SIGCONT)
    assert two.post("/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ({"die_at": "weights"}, -signal.SIGKILL),
        ({"exit_at": "pools", "exit_code": 69}, 69),
        ({"refuse_arming": "the target has changed"}, 78),
        ({"die_at": "wieghts"}, 78),
        ({"no_such_key": 1}, 78),
    ],
)
def test_it_ends_where_and_how_it_is_told(one: Ranks, script: dict[str, Any], status: int) -> None:
    one.script(r0=script)
    one.start()
    assert one.processes[0].wait(60) == status
    if status == 78:
        assert next(str(value) for value in [*script.values(), *script] if isinstance(value, str)) in one.log(0)


def test_adapters_of_the_plan_are_reported_as_armed_or_refused(one: Ranks, tmp_path: Path) -> None:
    plan = {"boot": "b1", "rank": 0, "report_dir": str(tmp_path / "reports"), "adapters": {"engram_nvme": {}}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    one.start(environment={"DSV41_RANK_PLAN": str(tmp_path / "plan.json")})
    one.wait_for(0, READY)
    (path,) = (tmp_path / "reports").glob("armed-scheduler-*.json")
    report = json.loads(path.read_text())
    assert report["pid"] == one.child(0) and report["boot"] == "b1"
    assert report["adapters"]["engram_nvme"]["state"] == "armed"


def test_a_death_can_wait_for_the_middle_of_a_stream(one: Ranks) -> None:
    one.serve()
    stream = Stream(one)
    one.script({"die_after_tokens": 20})
    assert one.processes[0].wait(60) == -signal.SIGKILL
    stream.join(60)
    assert stream.text.count("data: ") > 3 and "[DONE]" not in stream.text


def test_sigterm_of_a_worker_waits_for_the_head_and_that_of_the_head_for_what_runs(two: Ranks) -> None:
    two.serve()
    stream = Stream(two, LONG | {"max_tokens": 100})
    two.processes[1].terminate()
    two.wait_for(1, "waiting for the rank-0 ShutdownReq broadcast")
    two.processes[0].terminate()
    assert two.processes[0].wait(60) == 0
    assert two.processes[1].wait(60) == 0
    stream.join(60)
    assert stream.text.endswith("data: [DONE]\n\n")


def test_sigterm_while_loading_ends_it_at_once_with_its_children(one: Ranks) -> None:
    one.script({"phase_s": {"weights": 600}})
    one.start()
    one.wait_for(0, "Load weight begin")
    scheduler = one.child(0)
    one.processes[0].terminate()
    assert one.processes[0].wait(60) == -signal.SIGTERM
    until(lambda: comm(scheduler) != "sglang::schedul", "end of the scheduler")


def test_a_killed_launcher_leaves_no_process(one: Ranks) -> None:
    one.serve()
    pids = [one.child(0), one.child(0, "sglang::detoken")]
    one.processes[0].kill()
    one.processes[0].wait()
    until(lambda: not any(comm(pid).startswith("sglang") for pid in pids), "end of the children")


def test_a_taken_port_is_in_its_log_and_it_goes_on_without_serving(one: Ranks) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", one.ports[0]))
        taken.listen()
        one.start()
        one.wait_for(0, "address already in use")
        assert one.processes[0].poll() is None
        one.processes[0].terminate()
        one.processes[0].wait(60)
