"""V4.1's prompts as SGLang encodes them, letter by letter, and the check that a checkpoint's own encoding agrees.

The expected prompts are written out by hand from the published format (DeepSeek-V4.1's encoding/encoding.py, as its
copies describe it). Where DSV41_ENCODING names a checkpoint's real file, that one is checked as well.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engines import engine_environment
from tests.harness.encoding_file import PRE_RELEASE, V41_TOKENS, encoding_file

BOS, EOS, SYSTEM, USER, ANSWER = (
    f"<｜{word}｜>" for word in ("begin▁of▁sentence", "end▁of▁sentence", "System", "User", "Assistant")
)
IMAGE = "<｜deepseek_image｜>"


def effort(budget: int) -> str:
    return f"Reasoning Effort: {budget} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
TOOLS = (
    "## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools by "
    'writing a "<｜DSML｜ calls>" block like the following:\n\n'
    '<｜DSML｜ calls>\n<｜DSML｜ invoke name="$TOOL_NAME">\n'
    '<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>\n...\n'
    '</｜DSML｜ invoke>\n<｜DSML｜ invoke name="$TOOL_NAME2">\n...\n</｜DSML｜ invoke>\n</｜DSML｜ calls>\n\n'
    'String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, '
    'arrays, objects), pass the value in JSON format and set `string="false"`.\n\n'
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
    "<think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    f"### Available Tool Schemas\n\n{json.dumps(WEATHER['function'])}\n\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
)
CALLS = (
    '\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="get_weather">\n'
    '<｜DSML｜ parameter name="city" string="true">Paris</｜DSML｜ parameter>\n'
    '<｜DSML｜ parameter name="days" string="false">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n'
    '<｜DSML｜ invoke name="get_weather">\n<｜DSML｜ parameter name="city" string="true">Rome</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)
RESULTS = "<tool_result>dry</tool_result>\n\n<tool_result>wet</tool_result>"
"""In the order of the calls, whatever order they were sent in."""


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def called(name: str, number: str, arguments: str) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


ASKED_AND_CALLED = [
    said("system", "Be brief."),
    said("user", "Weather?"),
    said(
        "assistant", "", reasoning_content="Two cities.",
        tool_calls=[
            called("get_weather", "a", '{"city": "Paris", "days": 3}'),
            called("get_weather", "b", '{"city": "Rome"}'),
        ],
    ),
    said("tool", "wet", tool_call_id="b"),
    said("tool", "dry", tool_call_id="a"),
]  # fmt: skip
TURNS = [said("user", "one"), said("assistant", "two", reasoning_content="because"), said("user", "three")]
PICTURE = [
    said(
        "user",
        [
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "text", "text": "and"},
            {"type": "image_url", "image_url": {"url": "https://example.org/b.png"}},
        ],
    )
]

EXPECTED: dict[str, tuple[dict[str, Any], str]] = {
    "thinking off": (
        {"messages": [said("user", "x")], "thinking": False},
        f"{BOS}{USER}x{ANSWER}</think>",
    ),
    "thinking off, a system text": (
        {"messages": [said("system", "Be brief."), said("user", "x")], "thinking": False},
        f"{BOS}{SYSTEM}Be brief.{USER}x{ANSWER}</think>",
    ),
    "thinking on": (
        {"messages": [said("user", "x")], "thinking": True},
        f"{BOS}{SYSTEM}{effort(75)}{USER}x{ANSWER}<think>",
    ),
    "thinking on, a system text": (
        {"messages": [said("system", "Be brief."), said("user", "x")], "thinking": True},
        f"{BOS}{SYSTEM}{effort(75)}Be brief.{USER}x{ANSWER}<think>",
    ),
    **{
        f"effort {tier}": (
            {"messages": [said("user", "x")], "thinking": True, "reasoning_effort": tier},
            f"{BOS}{SYSTEM}{effort(budget)}{USER}x{ANSWER}<think>",
        )
        for tier, budget in (("low", 50), ("high", 75), ("max", 100))
    },
    **{
        # What the gateway sends: SGLang writes it over the 75 of a rendered prompt, token by token.
        f"a budget of {budget}": (
            {
                "messages": [said("system", "Reasoning Effort: 75"), said("user", "x")],
                "thinking": True,
                "budget": budget,
            },
            f"{BOS}{SYSTEM}{effort(budget)}Reasoning Effort: 75{USER}x{ANSWER}<think>",
        )
        for budget in (1, 33, 75, 100)
    },
    "a developer's message is a system text": (
        {"messages": [said("developer", "Be brief."), said("user", "x")], "thinking": False},
        f"{BOS}{SYSTEM}Be brief.{USER}x{ANSWER}</think>",
    ),
    "a system text between turns asks for an answer": (
        {"messages": [*TURNS[:2], said("system", "Now in French.")], "thinking": True},
        f"{BOS}{SYSTEM}{effort(75)}{USER}one{ANSWER}</think>two{EOS}{SYSTEM}Now in French.{ANSWER}<think>",
    ),
    "an answer to be continued": (
        {
            "messages": [said("user", "x"), said("assistant", "It is")],
            "thinking": False,
            "continue_final_message": True,
        },
        f"{BOS}{USER}x{ANSWER}</think>It is",
    ),
    "an effort without thinking": (
        {"messages": [said("user", "x")], "thinking": False, "reasoning_effort": "max"},
        f"{BOS}{USER}x{ANSWER}</think>",
    ),
    "turns without tools forget what was thought": (
        {"messages": TURNS, "thinking": True},
        f"{BOS}{SYSTEM}{effort(75)}{USER}one{ANSWER}</think>two{EOS}{USER}three{ANSWER}<think>",
    ),
    "turns, thinking off": (
        {"messages": TURNS, "thinking": False},
        f"{BOS}{USER}one{ANSWER}</think>two{EOS}{USER}three{ANSWER}</think>",
    ),
    "turns with tools keep what was thought": (
        {"messages": TURNS, "thinking": True, "tools": [WEATHER]},
        f"{BOS}{SYSTEM}{effort(75)}\n\n{TOOLS}{USER}one{ANSWER}<think>because</think>two{EOS}"
        f"{USER}three{ANSWER}<think>",
    ),
    "tool calls and their results": (
        {"messages": ASKED_AND_CALLED, "thinking": True, "tools": [WEATHER]},
        f"{BOS}{SYSTEM}{effort(75)}Be brief.\n\n{TOOLS}{USER}Weather?{ANSWER}<think>Two cities.</think>{CALLS}{EOS}"
        f"{USER}{RESULTS}{ANSWER}<think>",
    ),
    "tool calls, thinking off": (
        {"messages": ASKED_AND_CALLED, "thinking": False, "tools": [WEATHER]},
        f"{BOS}{SYSTEM}Be brief.\n\n{TOOLS}{USER}Weather?{ANSWER}</think>{CALLS}{EOS}{USER}{RESULTS}{ANSWER}</think>",
    ),
    "images": (
        {"messages": PICTURE, "thinking": False},
        f"{BOS}{USER}{IMAGE}\n\nand\n\n{IMAGE}{ANSWER}</think>",
    ),
}


@pytest.fixture(scope="module")
def inside(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], dict[str, Any]]:
    script = Path(__file__).parent / "inside" / "encoding.py"

    def run(checkpoint: Path) -> dict[str, Any]:
        done = subprocess.run(
            [engine_python, script, tmp_path_factory.mktemp("encoding"), checkpoint],
            env=engine_environment(),
            input=json.dumps([body for body, _ in EXPECTED.values()]),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


def with_encoding(demo_checkpoint: Path, target: Path, text: str | None) -> Path:
    """The demo's tokenizer and config beside this encoding.py."""
    target.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(demo_checkpoint / name, target / name)
    if text is not None:
        (target / "encoding").mkdir()
        (target / "encoding" / "encoding.py").write_text(text)
    return target


@pytest.fixture(scope="module")
def released(inside, demo_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    target = tmp_path_factory.mktemp("released") / "checkpoint"
    return inside(with_encoding(demo_checkpoint, target, encoding_file(V41_TOKENS)))


@pytest.mark.parametrize("number", range(len(EXPECTED)), ids=list(EXPECTED))
def test_a_prompt_is_the_published_one(released: dict[str, Any], number: int) -> None:
    _, expected = list(EXPECTED.values())[number]
    prompt = released["prompts"][number]
    assert prompt["text"] == expected
    assert prompt["same ids"]


def test_placeholders_come_in_the_order_of_their_images(released: dict[str, Any]) -> None:
    prompt = released["prompts"][list(EXPECTED).index("images")]
    assert prompt["images"] == ["https://example.org/a.png", "https://example.org/b.png"]


def test_a_released_checkpoint_is_recorded(released: dict[str, Any]) -> None:
    assert released["check"]["state"] == "engaged"
    assert released["check"]["reason"].startswith("revision dba1be0a, encoding.py sha256 ")
    assert "low 50, high 75, max 100" in released["check"]["reason"]


def test_the_pre_release_table_ends_the_start(inside, demo_checkpoint: Path, tmp_path: Path) -> None:
    text = encoding_file(V41_TOKENS, table=PRE_RELEASE)
    check = inside(with_encoding(demo_checkpoint, tmp_path / "checkpoint", text))["check"]
    assert check["status"] == 78
    assert check["refused"].startswith("adapter encoding_check refused: ")
    for part in (
        "of revision dba1be0a and deepseek-recipe 0.2.0:",
        "effort low is 25 in the file, published is 50",
        "effort low is rendered as budget 50, by the file it is budget 25",
        "from revision df42c109 on",
    ):
        assert part in check["refused"]


def test_a_token_that_the_tokenizer_lacks_ends_the_start(inside, demo_checkpoint: Path, tmp_path: Path) -> None:
    target = with_encoding(demo_checkpoint, tmp_path / "checkpoint", encoding_file(V41_TOKENS))
    tokenizer = (target / "tokenizer.json").read_text()
    (target / "tokenizer.json").write_text(tokenizer.replace("<｜latest_reminder｜>", "<｜newest_reminder｜>"))
    check = inside(target)["check"]
    assert check["status"] == 78
    assert "the tokenizer has no token '<｜latest_reminder｜>' (LATEST_REMINDER_SP_TOKEN)" in check["refused"]


def test_a_checkpoint_without_an_encoding_ends_the_start(inside, demo_checkpoint: Path, tmp_path: Path) -> None:
    check = inside(with_encoding(demo_checkpoint, tmp_path / "checkpoint", None))["check"]
    assert check["status"] == 78 and "encoding/encoding.py cannot be read" in check["refused"]


def test_the_real_file_where_there_is_one(inside, demo_checkpoint: Path, tmp_path: Path) -> None:
    named = os.environ.get("DSV41_ENCODING")
    if not named:
        pytest.skip("DSV41_ENCODING names no checkpoint's encoding.py")
    check = inside(with_encoding(demo_checkpoint, tmp_path / "checkpoint", Path(named).read_text()))["check"]
    assert check.get("state") == "engaged", check
