"""Declares `tp_pad`. Loaded by the supervisor too: standard library and pydantic only."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..adapter import Adapter, AdapterSettings, How, Role, Standing, Target


class TpPadSettings(AdapterSettings):
    """What is padded follows from the checkpoint and the world size: `dsv41 adapters plan --world-size N`."""

    force_groups: Annotated[int, Field(ge=1, le=256)] | None = Field(
        default=None,
        description="Attention groups to pad to, instead of the fewest that fit; only to compare padded with unpadded "
        "where no padding is needed. More of them cost memory and time for nothing.",
    )


ADAPTER = Adapter(
    name="tp_pad",
    changes="Zero heads, groups and draft experts are appended until the world size divides them",
    targets=(
        Target(
            "sglang.srt.configs.deepseek_v41:DeepseekV41Config.__init__",
            known={"a122133005661c44": "0.5.23"},
            how=How.AFTER,
        ),
        Target(
            "sglang.srt.models.deepseek_v4:DeepseekV4ForCausalLM.load_weights",
            known={"cf4dcd7c4c8dbc15": "0.5.23"},
            how=How.AROUND,
        ),
        Target(
            "sglang.srt.models.deepseek_v4_dspark:DeepseekV4ForCausalLMDSpark.load_weights",
            known={"83e17990756b0e12": "0.5.23"},
            how=How.AROUND,
        ),
        Target(
            "sglang.srt.models.deepseek_v4_dspark:_dspark_stage_config",
            known={"c3ce681e1251db6b": "0.5.23"},
            how=How.AFTER,
        ),
        Target(
            "sglang.srt.models.deepseek_v4:MqaAttentionBase.__init__",
            known={"52ec8015d0ce9883": "0.5.23"},
            how=How.RELIES,
        ),
        Target(
            "sglang.srt.layers.vocab_parallel_embedding:VocabParallelEmbedding.__init__",
            known={"1fb6ca148fb0b531": "0.5.23"},
            how=How.RELIES,
        ),
    ),
    settings=TpPadSettings,
    engages="the model's config is read, at the start of the launcher and of each scheduler",
    until="sglang pads heads for world sizes that do not divide them",
    credit="none: written for this project; that heads and groups grow together is the finding of MiaAI-Lab's recipe",
    standing=Standing.VERIFIED,
    same_output=True,
    processes=frozenset({Role.LAUNCHER, Role.SCHEDULER}),
)
