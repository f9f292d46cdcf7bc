"""Benchmarks that people run, through the real gateway to the real SGLang: requests are taken and counts are right.

Nothing is said about speed here, nor about how good random weights are at tools.
"""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.gateway import KEY, Fleet
from tests.harness.clients import environment

RUN_S = 240
"""Bound of one benchmark. They take 3 to 15 s on two idle cores, most of it imports."""


def run(argv: list[str], directory: Path, status: int = 0, **variables: str) -> str:
    """What it printed, ending with that exit status."""
    done = subprocess.run(
        argv, cwd=directory, env=environment(directory) | variables, timeout=RUN_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout[-3000:]
    return done.stdout


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def book(tmp_path: Path) -> Iterator[str]:
    """The text that llama-benchy cuts its prompts from; it would fetch a novel."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    (shelf / "book.txt").write_text("word down water but look through another been sentence follow their help\n" * 300)
    handler = functools.partial(_Quiet, directory=str(shelf))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/book.txt"
        finally:
            server.shutdown()
            thread.join()


def test_llama_benchy_measures(
    clients_python: Path, fleet: Fleet, demo_checkpoint: Path, tmp_path: Path, book: str
) -> None:
    """It wants the model's tokenizer.json at hand, and asks for token ids that SGLang does not stream."""
    printed = run(
        [
            str(clients_python.with_name("llama-benchy")), "--base-url", f"{fleet.url}/v1", "--api-key", KEY,
            "--model", "demo/demo", "--served-model-name", "demo", "--tokenizer", str(demo_checkpoint),
            "--book-url", book, "--pp", "64", "--tg", "8", "--exact-tg", "--depth", "0", "128",
            "--enable-prefix-caching", "--concurrency", "1", "2", "--runs", "1", "--no-warmup", "--skip-coherence",
            "--format", "json", "--save-result", "result.json", "--emit-progress", "progress.jsonl",
        ],
        tmp_path,
    )  # fmt: skip
    assert "HTTP " not in printed and "Error" not in printed
    # At each depth: one request, then two at once; where there is a depth, one more for each that only fills the cache.
    assert len(json.loads((tmp_path / "result.json").read_text())["benchmarks"]) == 6
    events = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    ends = [event for event in events if event["type"] == "request_end"]
    assert [(end["total_tokens"], end["error"]) for end in ends] == [(8, "")] * 9
    assert [end["prompt_tokens"] for end in ends[:3]] == [64] * 3


def test_benchmarks_end_at_once_with_a_wrong_key_and_say_so(
    clients_python: Path, fleet: Fleet, demo_checkpoint: Path, tmp_path: Path, book: str
) -> None:
    """sglang.bench_serving is not here: it asks for a minute, and then knows only that the server is not ready."""
    wrong = "--api-key", "sk-0000000000000000"
    benchy = [
        "--base-url", f"{fleet.url}/v1", "--model", "demo/demo", "--served-model-name", "demo",
        "--tokenizer", str(demo_checkpoint), "--book-url", book, "--pp", "64", "--tg", "8", "--runs", "1",
    ]  # fmt: skip
    printed = run([str(clients_python.with_name("llama-benchy")), *benchy, *wrong], tmp_path, status=1)
    assert "Warmup failed: HTTP 401" in printed and "This API key is not valid here." in printed
    scenario = ["run", "--base-url", fleet.url, "--no-live", "--no-warmup", "--scenarios", "TC-64"]
    printed = run([str(clients_python.with_name("tool-eval-bench")), *scenario, *wrong], tmp_path, status=2)
    assert "Server returned 401. Check the URL and API key." in printed


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_tool_eval_bench_runs_its_scenarios(clients_python: Path, fleet: Fleet, tmp_path: Path, wire: str) -> None:
    """Those that fit into the context of the demo's model: a schema, two with tools, several turns."""
    asked = ["--format", wire, "--no-think", "--scenarios", "TC-64", "TC-75", "TC-78", "TC-88"]
    for result in tool_eval_bench(clients_python, fleet, tmp_path, *asked):
        assert result["completion_tokens"] == 24 * result["turn_count"], result


def test_tool_eval_bench_reads_a_call(clients_python: Path, fleet: Fleet, tmp_path: Path) -> None:
    must = json.dumps({"max_tokens": 40, "tool_choice": "required"})
    # Its first look at the model would carry the choice, and no tools to choose from.
    asked = ["--scenarios", "TC-78", "--no-preflight", "--backend-kwargs", must]
    (result,) = tool_eval_bench(clients_python, fleet, tmp_path, *asked)
    (call,) = result["tool_calls_made"]
    assert call.partition("(")[0] in ("calculator", "get_stock_price")


def tool_eval_bench(python: Path, fleet: Fleet, directory: Path, *asked: str) -> list[dict[str, Any]]:
    printed = run(
        [
            str(python.with_name("tool-eval-bench")), "run", "--base-url", fleet.url, "--api-key", KEY, "--no-live",
            "--no-warmup", "--backend-kwargs", json.dumps({"max_tokens": 24}), "--json-file", "result.json",
            "--output-dir", "runs", *asked,
        ],
        directory,
    )  # fmt: skip
    assert '"level": "warning"' not in printed, printed
    result = json.loads((directory / "result.json").read_text())
    assert result["status"] == "completed"
    scenarios: list[dict[str, Any]] = result["scores"]["scenario_results"]
    # A request that was refused is a failure of the model's to it, and says so only here.
    assert not [s for s in scenarios if "HTTP" in s["summary"] or "rejected" in s["summary"]]
    return scenarios


def test_sglang_bench_serving_measures(
    engine_python: Path, fleet: Fleet, demo_checkpoint: Path, tmp_path: Path, repo_root: Path
) -> None:
    (installed,) = engine_python.parents[1].glob("lib/python3*/site-packages/sglang-*.dist-info")
    version = installed.name.removeprefix("sglang-").removesuffix(".dist-info")
    assert f"`sglang.bench_serving` {version} " in (repo_root / "supervisor" / "GATEWAY.md").read_text()
    run(
        [
            str(engine_python), "-m", "sglang.bench_serving", "--backend", "sglang-oai-chat", "--base-url", fleet.url,
            "--model", "demo", "--tokenizer", str(demo_checkpoint), "--dataset-name", "random-ids",
            "--random-input-len", "32", "--random-output-len", "8", "--random-range-ratio", "1", "--num-prompts", "4",
            "--max-concurrency", "2", "--warmup-requests", "1", "--seed", "1", "--output-file", "result.jsonl",
        ],
        tmp_path, OPENAI_API_KEY=KEY,
    )  # fmt: skip
    result = json.loads((tmp_path / "result.jsonl").read_text())
    assert (result["completed"], result["total_input_tokens"], result["total_output_tokens"]) == (4, 128, 32)
