"""loop_abort in the real engine: its requests, and a server that is made to say one token for ever."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dsv41_adapters.adapter import State

from tests.engine.engines import Engine, engine_environment, running
from tests.engine.gateway import FLEET_KEY, KEY, Fleet, gateway


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
    assert states == {"launcher": State.ENGAGED, "scheduler": State.ENGAGED, "detokenizer": State.OFF}
    hooked = {report.role: len(report.adapters["loop_abort"].targets) for report in server.reports()}
    assert hooked == {"launcher": 5, "scheduler": 1, "detokenizer": 0}, "each in its own process"


_SCHEMA = {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]}
"""Between `{` and a name JSON allows any blanks, and there the demo's model stays: a loop of its own."""
_FORMAT = {"type": "json_schema", "name": "said", "schema": _SCHEMA}
_SAID = [{"role": "user", "content": "Say something."}]
LOOPS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": _SAID, "max_tokens": 900, "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "said", "schema": _SCHEMA}},
    },
    "/v1/messages": {"messages": _SAID, "max_tokens": 900, "temperature": 0,
                     "output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}},
    "/v1/responses": {"input": "Say something.", "max_output_tokens": 900, "temperature": 0,
                      "text": {"format": _FORMAT}},
}  # fmt: skip
_OWN = {"/v1/chat/completions": "stop", "/v1/messages": "stop_sequences", "/v1/responses": "stop"}


@pytest.fixture(scope="module")
def fleet(server: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with gateway(server.ranks[0].port, tmp_path_factory.mktemp("loops-gateway"), context_length=4096) as fleet:
        fleet.serve_again()  # returns when requests are taken
        yield fleet


def ask(fleet: Fleet, path: str, body: dict[str, Any] | None = None, key: str = KEY) -> tuple[str | None, bytes]:
    connection = http.client.HTTPConnection(fleet.url.removeprefix("http://"), timeout=120)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    what = None if body is None else json.dumps({"model": "demo", **body})
    connection.request("GET" if body is None else "POST", path, what, headers)
    response = connection.getresponse()
    finish, raw = response.headers["x-dsv41-finish"], response.read()
    connection.close()
    assert response.status == 200, raw
    return finish, raw


def events(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in raw.splitlines() if line.startswith(b"data: {")]


def end_of(path: str, said: dict[str, Any]) -> tuple[Any, Any]:
    """How it ended, and by what, in the protocol's words; `said` is a whole answer or the event that tells it."""
    if path == "/v1/messages":
        said = said.get("delta", said)
        return said["stop_reason"], said.get("stop_sequence")
    if path == "/v1/responses":
        said = said.get("response", said)
        assert said["error"] is None
        return said["status"], said["incomplete_details"] and said["incomplete_details"].get("matched_stop")
    (choice,) = said["choices"]
    return choice["finish_reason"], choice["matched_stop"]


ENDS = {"/v1/chat/completions": "stop", "/v1/messages": "stop_sequence", "/v1/responses": "incomplete"}


@pytest.mark.parametrize("path", LOOPS)
def test_every_protocol_tells_a_loop_whole_and_streamed_through_the_gateway(
    server: Engine, fleet: Fleet, path: str
) -> None:
    stopped = server.settled_counters()[0]["loops_stopped"]
    finish, raw = ask(fleet, path, LOOPS[path])
    end, text = end_of(path, json.loads(raw))
    found = re.fullmatch(r"repetition: exact repetition from output token (\d+), \d+ copies of about \d+ tokens", text)
    assert end == ENDS[path] and found, (end, text)
    assert finish == f"repetition; token={found[1]}"
    _, raw = ask(fleet, path, LOOPS[path] | {"stream": True})
    (at,) = (i for i, event in enumerate(raw.split(b"\n\n")) if event.startswith(b": x-dsv41-finish "))
    told, comment = raw.split(b"\n\n")[at - 1 : at + 1]
    assert comment == f": x-dsv41-finish {finish}".encode()
    assert end_of(path, *events(told)) == (end, text)
    if path == "/v1/responses":
        assert events(told)[0]["type"] == "response.incomplete"
    assert server.settled_counters()[0]["loops_stopped"] == stopped + 2
    _, metrics = ask(fleet, "/metrics", key=FLEET_KEY)
    assert f'answers_total{{route="{path}",finish="repetition"}} 2\n' in metrics.decode()


_CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome"]}}, "required": ["city"]}
_FUNCTION = {"name": "get_weather", "parameters": _CITY, "strict": True}
CALLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"tools": [{"type": "function", "function": _FUNCTION}], "tool_choice": "required"},
    "/v1/messages": {"tools": [{"name": "get_weather", "input_schema": _CITY, "strict": True}],
                     "tool_choice": {"type": "any"}},
    "/v1/responses": {"tools": [{"type": "function"} | _FUNCTION], "tool_choice": "required"},
}  # fmt: skip


@pytest.mark.parametrize("path", LOOPS)
def test_a_loop_inside_a_tool_call_is_told_too(fleet: Fleet, path: str) -> None:
    """SGLang makes a call of it, without arguments, and would say that the answer ended with one."""
    shape = {"response_format", "output_config", "text"}
    plain = {name: said for name, said in LOOPS[path].items() if name not in shape}
    finish, raw = ask(fleet, path, plain | CALLS[path])
    end, text = end_of(path, json.loads(raw))
    assert b'"get_weather"' in raw and text.endswith(" tokens, inside a tool call, whose arguments are not whole")
    assert end == ("tool_calls" if path == "/v1/chat/completions" else ENDS[path])
    assert re.fullmatch(r"repetition; token=\d+", str(finish))


@pytest.mark.parametrize("path", LOOPS)
def test_a_clients_own_stop_text_is_no_loop_in_any_protocol(fleet: Fleet, path: str) -> None:
    body = LOOPS[path] | {_OWN[path]: ["repetition: ", "\t\t\t\t"]}
    finish, raw = ask(fleet, path, body)
    _, streamed = ask(fleet, path, body | {"stream": True})
    told = events(streamed)
    last = [event for event in told if event.get("type") in ("message_delta", "response.completed")
            or any(choice.get("finish_reason") for choice in event.get("choices", ()))]  # fmt: skip
    own = "\t\t\t\t" if path == "/v1/chat/completions" else None
    end = {"/v1/chat/completions": "stop", "/v1/messages": "end_turn", "/v1/responses": "completed"}[path]
    assert end_of(path, json.loads(raw)) == end_of(path, *last) == (end, own)
    assert finish == "stop" and b": x-dsv41-finish" not in streamed


_SDKS = """
import json, sys
import anthropic, openai
url, key, bodies = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
ours = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
theirs = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
whole = ours.responses.create(model="demo", **bodies["/v1/responses"])
with ours.responses.stream(model="demo", **bodies["/v1/responses"]) as stream:
    *_, last = stream
message = theirs.messages.create(model="demo", extra_body=bodies["/v1/messages"], messages=[], max_tokens=900)
with theirs.messages.stream(model="demo", extra_body=bodies["/v1/messages"], messages=[], max_tokens=900) as stream:
    final = stream.get_final_message()
print(json.dumps({
    "responses": [[r.status, r.incomplete_details.reason, r.incomplete_details.matched_stop, len(r.output_text) > 500]
                  for r in (whole, last.response)] + [last.type],
    "messages": [[m.stop_reason, m.stop_sequence, len(m.content[0].text) > 500] for m in (message, final)],
}))
"""


def test_the_sdks_take_a_loops_end_and_no_one_for_a_success(engine_python: Path, fleet: Fleet) -> None:
    argv = [engine_python, "-c", _SDKS, fleet.url, KEY, json.dumps(LOOPS)]
    done = subprocess.run(argv, env=engine_environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    text = told["messages"][0][1]
    assert text.startswith("repetition: exact repetition from output token ")
    assert told["responses"] == [["incomplete", "max_output_tokens", text, True]] * 2 + ["response.incomplete"]
    assert told["messages"] == [["stop_sequence", text, True]] * 2
