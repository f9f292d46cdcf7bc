"""loop_abort in the real engine: its requests, and a server that is made to say one token for ever."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dsv41_adapters.adapter import State

from tests.engine.engines import Engine, engine_environment, running


@pytest.fixture(scope="module")
def inside(engine_python: Path, tmp_path_factory: pytest.TempPathFactory):
    script = Path(__file__).parent / "inside" / "loops.py"

    def run(mode: str) -> dict[str, Any]:
        scratch = tmp_path_factory.mktemp("loops")
        argv = [engine_python, script, mode, scratch]
        done = subprocess.run(argv, env=engine_environment(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_a_request_that_loops_is_finished_with_its_span_and_others_are_not(inside) -> None:
    seen = inside("enforce")
    answers = seen["answers"]
    for name in ("loop", "loop, six tokens a step"):
        assert answers[name]["reason"]["type"] == "stop"
        assert answers[name]["reason"]["matched"].startswith("repetition: exact repetition from output token ")
        assert answers[name]["n_tokens"] == answers[name]["finished_len"] < 2000
    assert abs(answers["loop"]["n_tokens"] - answers["loop, six tokens a step"]["n_tokens"]) < 6
    assert answers["new text"]["reason"] is None and answers["new text"]["n_tokens"] == 4000
    assert answers["the cap comes first"]["reason"] == {"type": "length", "length": 500}
    assert seen["counters"] == {"loops_found": 2, "loops_stopped": 2, "loops_in_tool_calls": 0}


def test_observing_counts_and_stops_nothing(inside) -> None:
    seen = inside("observe")
    assert seen["answers"]["loop"]["reason"] is None and seen["answers"]["loop"]["n_tokens"] == 20_000
    assert seen["counters"] == {"loops_found": 2, "loops_stopped": 0, "loops_in_tool_calls": 0}


@pytest.fixture(scope="module")
def server(
    engine_python: Path, encoded_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """With adapters that say something at start or count, and leave the answers alone."""
    directory = tmp_path_factory.mktemp("loop-server")
    adapters = {
        "loop_abort": {"base_tokens": 64},
        "encoding_check": {},
        "prefill_empty_cache": {"context_tokens": 100},
        "autotune_keep": {},
    }
    with running(engine_python, encoded_checkpoint, directory, world_size=1, adapters=adapters) as engine:
        yield engine


def test_a_server_records_which_encoding_its_revision_has(server: Engine) -> None:
    states = {report.role.value: report.adapters["encoding_check"] for report in server.reports()}
    assert states["launcher"].state is State.ENGAGED
    assert states["launcher"].reason is not None
    assert states["launcher"].reason.startswith("revision demo, encoding.py sha256 ")
    assert states["launcher"].reason.endswith(
        "and deepseek-recipe 0.2.0 agree: low 50, high 75, max 100; a request that names none gets 75"
    )
    assert states["scheduler"].state is State.OFF


def test_a_server_empties_its_cache_after_each_chunk_of_a_long_prompt(server: Engine) -> None:
    """Chunks of 64 tokens: those of 230 end at 64, 128, 192 and 230, and three of them are long enough."""
    before = server.settled_counters()[0]["long_chunks"]
    prompt = server.post("/tokenize", {"prompt": "the quick brown fox " * 40})["tokens"][:230]
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}}
    assert server.post("/generate", body)["meta_info"]["prompt_tokens"] == 230
    assert server.settled_counters()[0]["long_chunks"] - before == 3
    server.post("/generate", body | {"input_ids": prompt[100:190]})
    assert server.settled_counters()[0]["long_chunks"] - before == 3


def test_the_adapters_for_kernels_are_armed_in_a_real_scheduler(server: Engine) -> None:
    (scheduler,) = (report for report in server.reports() if report.role.value == "scheduler")
    assert scheduler.adapters["autotune_keep"].state is State.ARMED, "nothing is tuned on a CPU"
    assert scheduler.adapters["prefill_empty_cache"].state is State.ENGAGED


def test_a_server_stops_one_token_for_ever_and_says_so_to_the_client(server: Engine) -> None:
    told = server.chat("Say something.", max_tokens=900, ignore_eos=True, logit_bias={"300": 100.0})
    choice = told["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["matched_stop"].startswith("repetition: exact repetition from ")
    assert told["usage"]["completion_tokens"] < 900
    assert server.counters()["loops_stopped"] == 1
    states = {report.role: report.adapters["loop_abort"].state for report in server.reports()}
    assert states["scheduler"] is State.ENGAGED and states["detokenizer"] is State.OFF
