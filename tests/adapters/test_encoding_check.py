"""What a checkpoint's encoding.py says is read without running it, and compared with what is rendered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from dsv41_adapters.encoding_check.published import CannotRead, Published, differences, prompt_of, read_published
from dsv41_adapters.encoding_check.spec import DEFAULT_TIER, EFFORT
from dsv41_supervisor.gateway.policy import TIER_BUDGETS

from tests.harness.encoding_file import PRE_RELEASE, encoding_file

SPELT = {
    "bos_token": "<bos>", "eos_token": "<eos>", "thinking_start_token": "<think>", "thinking_end_token": "</think>",
    "dsml_token": "DSML", "SYSTEM_SP_TOKEN": "<system>", "USER_SP_TOKEN": "<user>", "ASSISTANT_SP_TOKEN": "<answer>",
    "LATEST_REMINDER_SP_TOKEN": "<reminder>", "IMAGE_PLACEHOLDER": "<image>",
}  # fmt: skip
TOKENS = "".join(f"{name} = {value!r}\n" for name, value in SPELT.items())


def written(tmp_path: Path, text: str) -> Published:
    (tmp_path / "encoding").mkdir(exist_ok=True)
    (tmp_path / "encoding" / "encoding.py").write_text(text)
    return read_published(tmp_path, "encoding/encoding.py")


def renderer(published: Published, table: Mapping[str, int], default: int) -> Any:
    """Renders as the file says, but for the budgets."""

    def render(body: Mapping[str, Any]) -> str:
        if body["thinking"]["type"] == "disabled":
            return '<DSML calls>\n<DSML invoke name="f">\n<DSML parameter name="a" string="true">b</DSML parameter>'
        return prompt_of(published, table.get(body.get("reasoning_effort", ""), default), SPELT)

    return render


def test_the_published_file_agrees(tmp_path: Path) -> None:
    published = written(tmp_path, encoding_file(TOKENS))
    assert (published.default, dict(published.table)) == (75, EFFORT)
    assert differences(published, renderer(published, EFFORT, 75), SPELT) == []


def test_the_pre_release_table_is_named_tier_by_tier(tmp_path: Path) -> None:
    published = written(tmp_path, encoding_file(TOKENS, table=PRE_RELEASE))
    found = differences(published, renderer(published, EFFORT, 75), SPELT)
    assert "effort low is 25 in the file, published is 50" in found
    assert "effort high is 50 in the file, published is 75" in found
    assert "effort low is rendered as budget 50, by the file it is budget 25" in found
    assert "a request that names no effort is rendered as budget 75, by the file it is budget 50" in found
    assert not [sentence for sentence in found if "max" in sentence]


def test_a_renderer_of_another_table_is_found_though_the_file_is_right(tmp_path: Path) -> None:
    published = written(tmp_path, encoding_file(TOKENS))
    found = differences(published, renderer(published, EFFORT | {"max": 99}, 75), SPELT)
    assert found == ["effort max is rendered as budget 99, by the file it is budget 100"]


def test_a_token_or_tag_that_is_spelt_otherwise_is_found(tmp_path: Path) -> None:
    text = encoding_file(TOKENS.replace("'<image>'", "'<picture>'")).replace("' calls'", "'calls'")
    published = written(tmp_path, text)
    found = differences(published, renderer(published, EFFORT, 75), SPELT)
    assert found == [
        "IMAGE_PLACEHOLDER is '<picture>' in the file, prompts are rendered with '<image>'",
        "a tool call has '<DSMLcalls>' by the file, and is rendered without",
    ]


def test_the_file_is_never_run(tmp_path: Path) -> None:
    written(tmp_path, "raise SystemExit('run')\n" + encoding_file(TOKENS))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("def", "is not Python"),
        ("x = 1\n", "does not say REASONING_EFFORT_MAPPINGS, DEFAULT_REASONING_EFFORT, REASONING_EFFORT_TEMPLATE"),
        (encoding_file("").replace("50", "'fifty'"), "is not tiers with whole numbers"),
        (encoding_file("").replace("'high'\n", "'ultra'\n"), "DEFAULT_REASONING_EFFORT 'ultra' is no tier"),
        (encoding_file("").replace("'high'\n", "['high']\n"), "is no tier"),
        (encoding_file("").replace("'low'", "1"), "is not tiers with whole numbers"),
        (encoding_file("").replace("{budget}", "{level}"), "has no place for {budget} alone"),
        (encoding_file("").replace("{budget}", "{budget.x}"), "has no place for {budget} alone"),
        (encoding_file("").replace("{budget}", "{budget"), "has no place for {budget} alone"),
        (encoding_file("").replace("{budget}", "75"), "has no place for {budget} alone"),
        (f"x = {'-' * 90_000}1\n" + encoding_file(""), "is not Python (MemoryError)"),
        (f"x = {'+'.join(['1'] * 20_000)}\n" + encoding_file(""), "is not Python (maximum recursion depth"),
    ],
)
def test_what_cannot_be_read_says_what_is_wrong(tmp_path: Path, text: str | None, said: str) -> None:
    with pytest.raises(CannotRead, match=re.escape(said)):
        read_published(tmp_path, "encoding/encoding.py") if text is None else written(tmp_path, text)


@pytest.mark.parametrize(
    "later",
    [
        "REASONING_EFFORT_MAPPINGS['low'] = 25",
        "REASONING_EFFORT_MAPPINGS.update(low=25)",
        "REASONING_EFFORT_MAPPINGS |= {'low': 25}",
        "if True:\n    REASONING_EFFORT_MAPPINGS = {'low': 25, 'high': 50, 'max': 100}",
        "del REASONING_EFFORT_MAPPINGS",
        "DEFAULT_REASONING_EFFORT = other()",
        "DEFAULT_REASONING_EFFORT, x = 'max', 1",
        "x = DEFAULT_REASONING_EFFORT = 'max'",
        "from .tiers import DEFAULT_REASONING_EFFORT",
        "def REASONING_EFFORT_TEMPLATE(): pass",
    ],
)
def test_a_value_that_is_changed_later_is_not_taken_for_what_the_file_says(tmp_path: Path, later: str) -> None:
    with pytest.raises(CannotRead, match="does not say [A-Z_]+ as plain values"):
        written(tmp_path, f"{encoding_file(TOKENS)}{later}\n")


@pytest.mark.parametrize(
    "beside",
    [
        "def f(REASONING_EFFORT_MAPPINGS):\n    DEFAULT_REASONING_EFFORT = 1",
        "x = REASONING_EFFORT_MAPPINGS[DEFAULT_REASONING_EFFORT]",
        "x = REASONING_EFFORT_MAPPINGS.keys()",
        "x = {[]: 1}",
    ],
)
def test_what_only_reads_a_value_leaves_it(tmp_path: Path, beside: str) -> None:
    assert written(tmp_path, f"{encoding_file(TOKENS)}{beside}\n").default == 75


def test_the_last_plain_value_counts(tmp_path: Path) -> None:
    text = f"{encoding_file(TOKENS)}DEFAULT_REASONING_EFFORT = other()\nDEFAULT_REASONING_EFFORT = 'max'\n"
    assert written(tmp_path, text).default == 100


def test_the_gateway_has_the_same_table() -> None:
    assert {tier: TIER_BUDGETS[tier] for tier in EFFORT} == EFFORT
    assert TIER_BUDGETS["medium"] == EFFORT[DEFAULT_TIER], "what is no tier of the model is its default"
