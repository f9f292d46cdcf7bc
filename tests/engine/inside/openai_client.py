"""The `openai` SDK against a gateway: each step prints one JSON line. argv: base URL, key, step …"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import openai

BASE, KEY = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
HI: list[Any] = [{"role": "user", "content": "What is a spark?"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SCHEMA: Any = {
    "type": "object",
    "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


def no_blanks() -> Any:
    """A model of random weights likes blanks, and a grammar lets it have them for ever: `logit_bias` against them."""
    ids = {}
    for blank in ("\t", " ", "\n", "\r", "\t\t", "  ", "\n\n"):
        body = json.dumps({"prompt": blank, "add_special_tokens": False}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        with urllib.request.urlopen(urllib.request.Request(f"{BASE}/tokenize", body, headers)) as response:
            ids |= {str(token): -100 for token in json.load(response)["tokens"]}
    return {"logit_bias": ids}


def models() -> Any:
    return [model.id for model in client.models.list()]


def chat() -> Any:
    raw = client.chat.completions.with_raw_response.create(model="any", messages=HI, max_tokens=12, temperature=0)
    whole = raw.parse()
    return {
        "content": whole.choices[0].message.content,
        "finish": whole.choices[0].finish_reason,
        "usage": whole.usage.model_dump() if whole.usage else None,
        "headers": {name: value for name, value in raw.headers.items() if name.startswith("x-")},
        "id": whole.id,
    }


def stream() -> Any:
    told: dict[str, Any] = {}
    for usage in (False, True):
        asked: Any = {"stream_options": {"include_usage": True}} if usage else {}
        chunks = list(
            client.chat.completions.create(model="any", messages=HI, max_tokens=12, temperature=0, stream=True, **asked)
        )
        told["with usage" if usage else "without"] = {
            "content": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
            "finish": [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason],
            "without choices": sum(not c.choices for c in chunks),
            "completion_tokens": [c.usage.completion_tokens for c in chunks if c.usage],
        }
    return told


def thinking() -> Any:
    message = client.chat.completions.create(
        model="any", messages=HI, max_tokens=12, temperature=0, reasoning_effort="low"
    ).choices[0].message
    return {"content": message.content, "reasoning": getattr(message, "reasoning_content", None)}


def tools() -> Any:
    choice = client.chat.completions.create(
        model="any", messages=HI, max_tokens=200, temperature=0, tools=[TOOL], tool_choice="required",
        parallel_tool_calls=False, **no_blanks(),
    ).choices[0]
    calls = choice.message.tool_calls or []
    told = [[call.function.name, json.loads(call.function.arguments)] for call in calls]
    return {"finish": choice.finish_reason, "calls": told}


def tools_stream() -> Any:
    name, arguments, finish = "", "", None
    for chunk in client.chat.completions.create(
        model="any", messages=HI, max_tokens=200, temperature=0, tools=[TOOL], tool_choice="required", stream=True,
        parallel_tool_calls=False, **no_blanks(),
    ):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                if call.function is not None:
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
    return {"finish": finish, "calls": [[name, json.loads(arguments)]]}


def structured() -> Any:
    said = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Answer in json."}], max_tokens=64, temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}},
        **no_blanks(),
    )  # fmt: skip
    return json.loads(said.choices[0].message.content or "")


def completions() -> Any:
    said = client.completions.create(model="any", prompt="A spark is", max_tokens=5, temperature=0)
    streamed = client.completions.create(model="any", prompt="A spark is", max_tokens=5, temperature=0, stream=True)
    return {"whole": said.choices[0].text, "streamed": "".join(c.choices[0].text for c in streamed if c.choices)}


def responses() -> Any:
    said = client.responses.create(model="any", input="What is a spark?", max_output_tokens=12, temperature=0)
    return {
        "text": said.output_text,
        "status": said.status,
        "why": said.incomplete_details.reason if said.incomplete_details else None,
        "output_tokens": said.usage.output_tokens if said.usage else None,
    }


def responses_stream() -> Any:
    with client.responses.stream(model="any", input="What is a spark?", max_output_tokens=12, temperature=0) as events:
        names = [event.type for event in events]
        final = events.get_final_response() if "response.completed" in names else None
    return {"names": sorted(set(names)), "last": names[-1], "final": final is not None}


def responses_thinking() -> Any:
    said = client.responses.create(
        model="any", input="What is a spark?", max_output_tokens=12, temperature=0, reasoning={"effort": "low"}
    )
    return [item.type for item in said.output]


def responses_tools() -> Any:
    tool: Any = {"type": "function", "strict": True} | TOOL["function"]
    said = client.responses.create(
        model="any", input="What is a spark?", max_output_tokens=40, temperature=0, tools=[tool], tool_choice="required"
    )
    return [item.name for item in said.output if item.type == "function_call"]


def errors() -> Any:
    told: dict[str, Any] = {}

    def failing(name: str, call: Callable[[], Any]) -> None:
        try:
            call()
        except openai.APIStatusError as error:
            body: Any = error.body
            told[name] = [type(error).__name__, error.status_code, body["code"]]

    wrong = openai.OpenAI(base_url=f"{BASE}/v1", api_key="wrong-key-0123456789", max_retries=0)
    long: list[Any] = [{"role": "user", "content": "hi " * 6000}]
    failing("wrong key", lambda: wrong.models.list())
    failing("no such route", lambda: client.embeddings.create(model="any", input="x"))
    failing("bad value", lambda: client.chat.completions.create(model="any", messages=HI, max_tokens=0))
    failing("too long", lambda: client.chat.completions.create(model="any", messages=long))
    failing("too long, streamed", lambda: list(client.responses.create(model="any", input="hi " * 6000, stream=True)))
    return told


def cut() -> Any:
    """Prints a line when a stream runs; then the test takes the fleet away. Begins when it is told to."""
    told = {}
    for name, begin in (
        ("chat", lambda: client.chat.completions.create(
            model="any", messages=HI, max_tokens=3500, stream=True, extra_body={"ignore_eos": True})),
        ("responses", lambda: client.responses.create(model="any", input="x", max_output_tokens=3500, stream=True)),
    ):  # fmt: skip
        sys.stdin.readline()
        try:
            for i, _ in enumerate(begin()):
                if i == 5:
                    print(json.dumps("running"), flush=True)
            told[name] = "ended in silence"
        except openai.APIError as error:
            told[name] = [type(error).__name__, error.code, error.message]
        print(json.dumps("ended"), flush=True)
    return told


for step in sys.argv[3:]:
    print(json.dumps(globals()[step]()), flush=True)
