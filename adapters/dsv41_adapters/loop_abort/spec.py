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


ADAPTER = Adapter(
    name="loop_abort",
    changes="A request that generates the same thing over and over is finished, with the reason in matched_stop",
    targets=(
        Target(
            "sglang.srt.managers.schedule_batch:Req.update_finish_state",
            known={"7a37f8b8f22a74bc": "0.5.23"},
            how=How.AROUND,
        ),
        Target(
            "sglang.srt.managers.schedule_batch:FINISH_MATCHED_STR",
            known={"a71642a18022af85": "0.5.23"},
            how=How.RELIES,
        ),
    ),
    settings=LoopAbortSettings,
    engages="the first token of the first request",
    until="sglang stops loops of any period itself",
    credit="none: written for this project; that a loop needs a stop at the engine is the lesson of MiaAI-Lab's recipe",
    standing=Standing.VERIFIED,
    same_output=False,
    processes=frozenset({Role.SCHEDULER}),
)
