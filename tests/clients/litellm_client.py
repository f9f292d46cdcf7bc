"""LiteLLM against a gateway: each step read from stdin prints one JSON line.

argv: base URL, key, and two keys of one request at a time.

The same steps twice: as `openai/…`, which speaks chat completions, and as `anthropic/…`, which speaks messages.
"""

from __future__ import annotations

import itertools
import json
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

OUT, sys.stdout = sys.stdout, sys.stderr  # LiteLLM prints advice between the answers

import litellm  # noqa: E402

BASE, KEY, *NARROW_KEYS = sys.argv[1:]
ASKED: dict[str, dict[str, Any]] = {
    "openai": {"model": "openai/demo", "api_base": f"{BASE}/v1", "api_key": KEY, "max_retries": 0},
    "anthropic": {"model": "anthropic/demo", "api_base": BASE, "api_key": KEY, "max_retries": 0},
}
GREEDY: Any = {"temperature": 0, "max_tokens": 12}
HI: list[Any] = [{"role": "user", "content": "What is a spark?"}]
TOO_LONG: list[Any] = [{"role": "user", "content": "hi " * 6000}]
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


def both(call: Callable[[dict[str, Any]], Any]) -> Any:
    return {provider: call(where) for provider, where in ASKED.items()}


def of(answer: Any) -> Any:
    choice = answer.choices[0]
    return {
        "content": choice.message.content,
        "finish": choice.finish_reason,
        "calls": [call.function.name for call in choice.message.tool_calls or []],
        "tokens": answer.usage.completion_tokens,
    }


def whole(**asked: Any) -> Any:
    return of(litellm.completion(**asked))


def streamed(**asked: Any) -> Any:
    chunks = list(litellm.completion(stream=True, stream_options={"include_usage": True}, **asked))
    return of(litellm.stream_chunk_builder(chunks))


def chat() -> Any:
    return both(lambda where: [whole(messages=HI, **GREEDY, **where), streamed(messages=HI, **GREEDY, **where)])


def thinking() -> Any:
    """`reasoning_effort`, which LiteLLM itself refuses for a model it does not know, until it is allowed."""

    def of_one(where: dict[str, Any]) -> Any:
        # As messages, LiteLLM asks for a budget of 1024 tokens and more room than that: read the beginning only.
        asked = {"messages": HI, "reasoning_effort": "low", "max_tokens": 1100, "temperature": 0, "stream": True}
        chunks = litellm.completion(**asked, **where, allowed_openai_params=["reasoning_effort"])
        deltas = [chunk.choices[0].delta for chunk in itertools.islice(chunks, 8)]
        kinds = ("content", "reasoning_content")
        return {kind: "".join(getattr(delta, kind, None) or "" for delta in deltas) for kind in kinds}

    return both(of_one)


def tools() -> Any:
    asked = {"messages": HI, "tools": [TOOL], "tool_choice": "required", "temperature": 0, "max_tokens": 40}
    return both(lambda where: [whole(**asked, **where), streamed(**asked, **where)])


def no_blanks() -> Any:
    """A model of random weights likes blanks, and a grammar lets it have them for ever: `logit_bias` against them."""
    ids = {}
    for blank in ("\t", " ", "\n", "\r", "\t\t", "  ", "\n\n"):
        body = json.dumps({"prompt": blank, "add_special_tokens": False}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        with urllib.request.urlopen(urllib.request.Request(f"{BASE}/tokenize", body, headers)) as response:
            ids |= {str(token): -100 for token in json.load(response)["tokens"]}
    return {"logit_bias": ids}


def call() -> Any:
    """One whole call. Messages have no `logit_bias`."""
    asked = {"messages": HI, "tools": [TOOL], "tool_choice": "required", "temperature": 0, "max_tokens": 200}
    asked |= no_blanks() | ASKED["openai"] | {"parallel_tool_calls": False}
    answers = [
        litellm.completion(**asked),
        litellm.stream_chunk_builder(list(litellm.completion(stream=True, **asked))),
    ]
    (one, other) = ([c.function for c in answer.choices[0].message.tool_calls] for answer in answers)
    return [[[f.name, json.loads(f.arguments)] for f in functions] for functions in (one, other)]


def history() -> Any:
    """A call and its result sent back, as LiteLLM rewrites them for each provider."""
    call = {"id": "t1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    turns = [
        *HI, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
    ]  # fmt: skip
    return both(lambda where: whole(messages=turns, tools=[TOOL], **GREEDY, **where))


def structured() -> Any:
    properties = {"a": {"type": "string", "enum": ["yes", "no"]}}
    schema = {"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False}
    kind = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    return whole(messages=HI, response_format=kind, **GREEDY, **ASKED["openai"])


def completions() -> Any:
    asked = ASKED["openai"] | {"model": "text-completion-openai/demo"}
    return litellm.text_completion(prompt="A spark is", temperature=0, max_tokens=5, **asked).choices[0].text


def responses() -> Any:
    said = litellm.responses(input="What is a spark?", max_output_tokens=16, temperature=0, **ASKED["openai"])
    text = "".join(part.text for item in said.output for part in item.content)
    return {"text": text, "status": said.status, "tokens": said.usage.output_tokens}


def caught(call: Callable[[], Any]) -> Any:
    try:
        call()
    except Exception as error:
        return [type(error).__name__, getattr(error, "status_code", None), str(error)]
    return ["nothing", None, ""]


def errors() -> Any:
    def of_one(where: dict[str, Any]) -> Any:
        return {
            "wrong key": caught(lambda: whole(messages=HI, **where | {"api_key": "wrong-key-0123456789"})),
            "bad value": caught(lambda: whole(messages=HI, max_tokens=0, **where)),
            "too long": caught(lambda: whole(messages=TOO_LONG, max_tokens=5, **where)),
            "too long, streamed": caught(lambda: streamed(messages=TOO_LONG, max_tokens=5, **where)),
        }

    return both(of_one)


def limited() -> Any:
    """A second request of a key that may have one."""
    told = {}
    for (provider, where), key in zip(ASKED.items(), NARROW_KEYS, strict=True):
        asked = where | {"api_key": key, "messages": HI, "temperature": 0}
        first = litellm.completion(stream=True, max_tokens=150, **asked)
        next(first)
        told[provider] = caught(lambda asked=asked: whole(max_tokens=12, **asked))
        list(first)
    return told


def unready() -> Any:
    return both(lambda where: caught(lambda: whole(messages=HI, **GREEDY, **where)))


def cut(provider: str) -> Any:
    """Prints a line when its stream runs; then the test takes the fleet away."""
    chunks = litellm.completion(messages=HI, stream=True, max_tokens=3500, **ASKED[provider])

    def read() -> None:
        for i, _ in enumerate(chunks):
            if i == 5:
                print(json.dumps("running"), file=OUT, flush=True)

    return caught(read)


for line in sys.stdin:
    step, *of_step = line.split()
    print(json.dumps(globals()[step](*of_step)), file=OUT, flush=True)
