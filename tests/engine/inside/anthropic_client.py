"""The `anthropic` SDK against a gateway: each step prints one JSON line. argv: base URL, key, step …"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import anthropic

BASE, KEY = sys.argv[1], sys.argv[2]
client = anthropic.Anthropic(base_url=BASE, api_key=KEY, max_retries=0)
GREEDY: Any = {"temperature": 0}
HI: list[Any] = [{"role": "user", "content": "What is a spark?"}]
TOOL: Any = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def create() -> Any:
    raw = client.messages.with_raw_response.create(model="any", messages=HI, max_tokens=12, extra_body=GREEDY)
    said = raw.parse()
    return {
        "text": said.content[0].text,
        "stop": said.stop_reason,
        "usage": [said.usage.input_tokens, said.usage.output_tokens],
        "headers": {name: value for name, value in raw.headers.items() if name.startswith("x-")},
    }


def stream() -> Any:
    with client.messages.stream(model="any", messages=HI, max_tokens=12, extra_body=GREEDY) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    tokens = final.usage.output_tokens
    return {"text": text, "final": final.content[0].text, "stop": final.stop_reason, "tokens": tokens}


def thinking() -> Any:
    told = {}
    for asked in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}, {"type": "disabled"}):
        kind: Any = asked
        raw = client.messages.with_raw_response.create(model="any", messages=HI, max_tokens=8, thinking=kind)
        told[asked["type"]] = [raw.parse().content[0].type, raw.headers.get("x-dsv41-ignored")]
    return told


def tools() -> Any:
    with client.messages.stream(
        model="any", messages=HI, max_tokens=40, tools=[TOOL], tool_choice={"type": "any"}, extra_body=GREEDY
    ) as events:
        return [block.name for block in events.get_final_message().content if block.type == "tool_use"]


def count() -> Any:
    return client.messages.count_tokens(model="any", messages=HI).input_tokens


def history() -> Any:
    """A turn as Claude Code sends it back: thinking, a call and its result, the prompt to be cached."""
    turns: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "Look it up.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "I must look.", "signature": ""},
            {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "rain"}]},
    ]  # fmt: skip
    said = client.messages.create(
        model="any", max_tokens=5, system=[{"type": "text", "text": "Be terse."}], tools=[TOOL], messages=turns
    )
    return said.usage.output_tokens


def errors() -> Any:
    told: dict[str, Any] = {}

    def failing(name: str, call: Callable[[], Any]) -> None:
        try:
            call()
        except anthropic.APIStatusError as error:
            body: Any = error.body
            told[name] = [type(error).__name__, error.status_code, body["error"]["type"], body["error"]["message"][:19]]

    def streamed() -> None:
        with client.messages.stream(model="any", messages=long, max_tokens=5) as events:
            events.get_final_message()

    wrong = anthropic.Anthropic(base_url=BASE, api_key="wrong-key-0123456789", max_retries=0)
    long: list[Any] = [{"role": "user", "content": "hi " * 6000}]
    failing("wrong key", lambda: wrong.messages.create(model="any", messages=HI, max_tokens=5))
    failing("bad value", lambda: client.messages.create(model="any", messages=[], max_tokens=5))
    failing("too long", lambda: client.messages.create(model="any", messages=long, max_tokens=5))
    failing("too long, streamed", streamed)
    return told


def cut() -> Any:
    """Prints a line when the stream runs; then the test takes the fleet away. Begins when it is told to."""
    told: Any = "ended in silence"
    sys.stdin.readline()
    try:
        with client.messages.stream(model="any", messages=HI, max_tokens=3500) as events:
            for i, _ in enumerate(events):
                if i == 5:
                    print(json.dumps("running"), flush=True)
    except anthropic.APIStatusError as error:
        body: Any = error.body
        told = [type(error).__name__, body["error"]["code"], body["error"]["message"]]
    print(json.dumps("ended"), flush=True)
    return {"messages": told}


for step in sys.argv[3:]:
    print(json.dumps(globals()[step]()), flush=True)
