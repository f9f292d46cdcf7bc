"""Declares `loop_abort`. Loaded by the supervisor too: standard library and pydantic only."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from ..adapter import Adapter, AdapterSettings, How, Role, Standing, Target


class Mode(StrEnum):
    """`observe` counts and logs what `enforce` would stop."""

    OBSERVE = "observe"
    ENFORCE = "enforce"


class LoopAbortSettings(AdapterSettings):
    """When a request that repeats itself is stopped."""

    mode: Mode = Field(default=Mode.ENFORCE, description="`enforce` stops a loop, `observe` only counts and logs it.")
    base_tokens: Annotated[int, Field(ge=64, le=65536)] = Field(
        default=768,
        description="Repeated tokens after which exact copies of plain prose are a loop. Near copies need 3 times, "
        "shuffled ones 6 times as many, tables and signs up to 16 times; smaller stops sooner and cuts good answers.",
    )


CHAT = "sglang.srt.entrypoints.openai.serving_chat:OpenAIServingChat"
MESSAGES = "sglang.srt.entrypoints.anthropic.serving:AnthropicServing"
RESPONSES = "sglang.srt.entrypoints.openai.serving_responses:OpenAIServingResponses"


def _answer(path: str, fingerprint: str, how: How) -> Target:
    """In the process that speaks HTTP, where a loop is told to the client."""
    return Target(path, known={fingerprint: "0.5.23"}, how=how, process=None if how is How.RELIES else Role.LAUNCHER)


ADAPTER = Adapter(
    name="loop_abort",
    changes="A request that generates the same thing over and over is finished, and its answer says so",
    targets=(
        Target(
            "sglang.srt.managers.schedule_batch:Req.update_finish_state",
            known={"7a37f8b8f22a74bc": "0.5.23"},
            how=How.AROUND,
            process=Role.SCHEDULER,
        ),
        Target(
            "sglang.srt.managers.schedule_batch:FINISH_MATCHED_STR",
            known={"a71642a18022af85": "0.5.23"},
            how=How.RELIES,
        ),
        _answer(f"{CHAT}._build_chat_response", "c32ddc739f7187f9", How.AROUND),
        _answer(f"{CHAT}._generate_chat_stream", "b0634378d348539f", How.RELIES),
        _answer(f"{MESSAGES}._convert_response", "900a13ab7e04f2cd", How.AFTER),
        _answer(f"{MESSAGES}._generate_anthropic_stream", "062c1de96d604870", How.AROUND),
        _answer(f"{RESPONSES}._status_from_finish_reason", "8e9ad0daad994a2b", How.AFTER),
        _answer(f"{RESPONSES}._build_response", "129afbab780f8660", How.AROUND),
        _answer(f"{RESPONSES}.responses_full_generator", "0e0149d846dbc392", How.RELIES),
        _answer(f"{RESPONSES}._responses_stream_generator_non_harmony", "d81a99d81b690d43", How.RELIES),
    ),
    settings=LoopAbortSettings,
    engages="the first token of the first request; in the launcher the first Messages, Responses or whole chat answer",
    until="sglang stops loops of any period itself, and says so in each protocol",
    credit="none: written for this project; that a loop needs a stop at the engine is the lesson of MiaAI-Lab's recipe",
    standing=Standing.VERIFIED,
    same_output=False,
    processes=frozenset({Role.SCHEDULER, Role.LAUNCHER}),
)
