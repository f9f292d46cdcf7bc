"""A stand-in for a checkpoint's encoding/encoding.py: its names and values, none of its code."""

from __future__ import annotations

from collections.abc import Mapping

RELEASED = {"low": 50, "high": 75, "max": 100}
PRE_RELEASE = {"low": 25, "high": 50, "xhigh": 75, "max": 100}
"""Of revision fb2764a5."""
V41_TOKENS = """\
bos_token: str = "<｜begin▁of▁sentence｜>"
eos_token: str = "<｜end▁of▁sentence｜>"
thinking_start_token: str = "<think>"
thinking_end_token: str = "</think>"
dsml_token: str = "｜DSML｜"
USER_SP_TOKEN = "<｜User｜>"
ASSISTANT_SP_TOKEN = "<｜Assistant｜>"
SYSTEM_SP_TOKEN = "<｜System｜>"
LATEST_REMINDER_SP_TOKEN = "<｜latest_reminder｜>"
IMAGE_PLACEHOLDER = "<｜deepseek_image｜>"
"""


def encoding_file(tokens: str, *, table: Mapping[str, int] = RELEASED) -> str:
    """`tokens`: more assignments, as text."""
    return (
        '"""Encodes conversations."""\n\nfrom typing import Dict\n\n'
        f"{tokens}"
        "tool_calls_block_name: str = ' calls'\n"
        "tool_call_tag_name: str = ' invoke'\n"
        "tool_parameter_tag_name: str = ' parameter'\n"
        "REASONING_EFFORT_TEMPLATE = (\n    'Reasoning Effort: {budget} '\n"
        "    '(range 1-100, the higher the value, the more thorough the reasoning)\\n\\n'\n)\n"
        f"REASONING_EFFORT_MAPPINGS: Dict[str, int] = {dict(table)!r}\n"
        "DEFAULT_REASONING_EFFORT = 'high'\n"
        "answer_template: str = '{content}' + str(1)\n"
    )
