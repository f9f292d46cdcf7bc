"""Declares `encoding_check`. Loaded by the supervisor too: standard library and pydantic only."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from ..adapter import Adapter, AdapterSettings, How, Role, Standing, Target

EFFORT = {"low": 50, "high": 75, "max": 100}
"""The published table. Source: encoding/encoding.py from df42c109 to dba1be0a, by sglang#39909.

The pre-release revision fb2764a5, which both recipes pin, has 25, 50 and 100, so that a tier means something else."""
DEFAULT_TIER = "high"


class EncodingCheckSettings(AdapterSettings):
    """What the checkpoint says of itself."""

    file: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,199}$")] = Field(
        default="encoding/encoding.py",
        description="The checkpoint's own encoding, relative to its directory. It is read and never run.",
    )


_OPENAI = "sglang.srt.entrypoints.openai.serving_deepseek_recipe:DeepSeekRecipeChatEncodingAdapter"

ADAPTER = Adapter(
    name="encoding_check",
    changes="A start ends when the checkpoint's encoding.py, deepseek-recipe and the effort table 50/75/100 disagree",
    targets=(
        Target(f"{_OPENAI}.__init__", known={"e0bebfdb1f752ff1": "0.5.23"}, how=How.AFTER),
        Target(f"{_OPENAI}._encode", known={"7d1697b08740438b": "0.5.23"}, how=How.RELIES),
        Target(
            "sglang.srt.parser.deepseek_recipe_renderer:DeepSeekRecipe.encode",
            known={"294c74fba1dfa0c7": "0.5.23"},
            how=How.RELIES,
        ),
    ),
    settings=EncodingCheckSettings,
    engages="the head's OpenAI endpoint is made, after the model is loaded; files are compared before anything is",
    until="sglang compares deepseek-recipe with the checkpoint itself",
    credit="none: written for this project; that the tables differ by revision is the finding of MiaAI-Lab's recipe",
    standing=Standing.VERIFIED,
    same_output=True,
    processes=frozenset({Role.LAUNCHER}),
)
